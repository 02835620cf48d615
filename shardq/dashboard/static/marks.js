// Marks all tasks of a list at once, and tells how many are marked. Without this file each is marked by itself.
"use strict";

const all = document.querySelector("[data-all]");
const boxes = [...document.querySelectorAll("input[type=checkbox][name=id]")];

function tell() {
  const marked = boxes.filter((box) => box.checked).length;
  all.checked = marked === boxes.length;
  all.indeterminate = marked > 0 && !all.checked;
  document.querySelector("[data-marked]").textContent = `${marked} marked`;
  for (const button of document.querySelectorAll("#marks button")) button.disabled = !marked;
}

if (all) {
  all.closest("label").hidden = false;
  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
    tell();
  });
  for (const box of boxes) box.addEventListener("change", tell);
  window.addEventListener("pageshow", tell);
  tell();
}
