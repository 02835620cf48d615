// An address may have the token behind its #, which browsers do not send: it goes into the form.
"use strict";

const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.querySelector("form");
  form.elements.token.value = token;
  form.requestSubmit();
}
