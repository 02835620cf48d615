// Keeps the part of a page that has data-live up to date. Without this file the page is complete, and stands still.
"use strict";

const part = document.querySelector("[data-live]");
const state = document.querySelector("[data-state]");
let source = null;
let lost = 0;

// Makes the old element like the new one, and touches only what differs: focus, scroll and open details stay.
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.childNodes.length !== fresh.childNodes.length) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const children = [...fresh.childNodes];
  [...old.childNodes].forEach((child, at) => morph(child, children[at]));
}

function say(text, on) {
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("on", on);
}

function open() {
  if (source) return;
  source = new EventSource(part.dataset.live);
  source.onopen = () => {
    clearTimeout(lost);
    if (!part.querySelector("[data-partial]")) say("live", true);
  };
  source.onmessage = (message) => {
    const fresh = part.cloneNode(false);
    fresh.innerHTML = message.data;
    // The part itself stays: what comes next goes into it.
    if (part.childNodes.length === fresh.childNodes.length) morph(part, fresh);
    else part.replaceChildren(...fresh.childNodes);
    if (part.querySelector("[data-partial]")) say("in part: not all was read", false);
    else say("live", true);
  };
  source.onerror = () => {
    clearTimeout(lost);
    if (source.readyState === EventSource.CLOSED) {
      // The server refused it: a restart has another token, or too many pages are open.
      source = null;
      say("no longer live: reload the page", false);
    } else {
      // A stream ends now and then, and is opened anew at once; only a longer gap is told.
      lost = setTimeout(() => say("not connected, trying again", false), 3000);
    }
  };
}

function close() {
  clearTimeout(lost);
  if (source) source.close();
  source = null;
}

if (part && state) {
  // A page in the background costs nothing.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", () => document.hidden || open());
  if (!document.hidden) open();
}
