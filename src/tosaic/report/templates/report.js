"use strict";
(() => {
  const root = document.documentElement;
  const find = (selector) => document.querySelector(selector);
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));

  // Colors: the system's choice until the button is used.
  find("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // The table of layers.
  const table = find("#layer-table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const order = new Map(rows.map((row, index) => [row, index]));
  const keys = new Map();

  const read = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.v);
  };

  const sort = (header) => {
    const column = header.cellIndex;
    const numeric = header.classList.contains("n");
    const old = header.getAttribute("aria-sort");
    const descending = old ? old === "ascending" : numeric && column > 0;
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    if (!keys.has(column)) keys.set(column, new Map(rows.map((row) => [row, read(row, column)])));
    const values = keys.get(column);
    const sign = descending ? -1 : 1;
    const sorted = rows.slice().sort((one, other) => {
      const a = values.get(one);
      const b = values.get(other);
      if (a === b) return order.get(one) - order.get(other);
      return a < b ? -sign : sign;
    });
    body.replaceChildren(...sorted);
  };
  all("th button", table).forEach((button) => button.addEventListener("click", () => sort(button.parentElement)));

  const search = find("#search");
  const device = find("#device");
  const limit = find("#limit");
  const count = find("#count");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      const fits = words.every((word) => texts[index].includes(word))
        && (!device.value || row.dataset.device === device.value)
        && (!limit.value || row.dataset.limit === limit.value);
      row.hidden = !fits;
      shown += fits;
    });
    count.value = shown === rows.length ? `${rows.length} layers` : `${shown} of ${rows.length} layers`;
  };
  [search, device, limit].forEach((input) => input.addEventListener("input", filter));
  const reset = () => { search.value = ""; device.value = ""; limit.value = ""; filter(); };
  find("#reset").addEventListener("click", reset);
  filter();

  // A link to a layer that a filter hides, or to a module that is folded, shows it.
  const follow = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.hidden) { reset(); target.scrollIntoView({ block: "center" }); }
    for (let at = target.parentElement; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target.tagName === "TR") { target.tabIndex = -1; target.focus({ preventScroll: true }); target.scrollIntoView({ block: "center" }); }
  };
  addEventListener("hashchange", follow);
  follow();

  // Folding.
  find("#unfold").addEventListener("click", () => all(".tree details").forEach((one) => { one.open = true; }));
  find("#fold").addEventListener("click", () => all(".tree details").forEach((one) => { one.open = false; }));

  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && event.target === search) {
      reset();
    }
  });
})();
