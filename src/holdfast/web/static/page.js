// Live updates: the server sends the content of this view again when it has changed. Without this file the page works,
// and shows what was true when it was loaded.
"use strict";
(() => {
  const body = document.body, main = document.getElementById("main"), mark = document.getElementById("live");

  const span = (s) => {
    s = Math.max(0, Math.floor(s));
    const parts = [];
    for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]) {
      if (s >= length || (unit === "s" && !parts.length)) { parts.push(Math.floor(s / length) + unit); s %= length; }
    }
    return parts.slice(0, 2).join(" ");
  };
  let ahead = 0; // by how much the clock of the server is ahead of this one, in milliseconds
  const ages = () => {
    for (const each of main.querySelectorAll("time[data-at]")) {
      const text = span((Date.now() + ahead - Number(each.dataset.at)) / 1000);
      if (each.textContent !== text) each.textContent = text;
    }
  };
  setInterval(ages, 1000);

  const say = (text, kind) => { mark.textContent = text; mark.className = "live " + kind; };

  // Replace the content, and keep what the reader has opened, selected or reached by keyboard.
  const keyOf = (each) => {
    const key = each && (each.id || each.getAttribute("href") || each.getAttribute("name"));
    return key && (each.closest("svg") ? "in a chart: " : "") + key; // a chart and a table may have the same link
  };
  const partOf = (each, n) => { const row = each.closest("tr"); return row ? row.textContent : n; }; // rows may move
  const replace = (html) => {
    const selection = window.getSelection();
    if (selection && !selection.isCollapsed && main.contains(selection.anchorNode)) return false;
    if (main.contains(document.activeElement) && /^(SELECT|INPUT)$/.test(document.activeElement.tagName)) return false;
    const opened = new Set([...main.querySelectorAll("details")].map((each, n) => each.open && partOf(each, n)));
    const scrolled = [...main.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const typed = [...main.querySelectorAll("input[name]")].filter((each) => each.value !== each.defaultValue);
    const focused = main.contains(document.activeElement) ? keyOf(document.activeElement) : null;
    main.innerHTML = html;
    main.querySelectorAll("details").forEach((each, n) => { each.open = opened.has(partOf(each, n)); });
    main.querySelectorAll(".scroll").forEach((each, n) => { each.scrollLeft = scrolled[n] || 0; });
    for (const old of typed) {
      const again = main.querySelector(`input[name="${CSS.escape(old.name)}"]`);
      if (again) again.value = old.value;
    }
    if (focused) {
      const again = [...main.querySelectorAll("a, summary, button, [id]")].find((each) => keyOf(each) === focused);
      if (again) again.focus({ preventScroll: true });
    }
    ages();
    return true;
  };

  // A strip of columns is one stop of the keyboard: the arrow keys move inside, and the chosen column is described below.
  main.addEventListener("focusin", (event) => {
    const column = event.target.closest(".chart a");
    if (!column) return;
    for (const each of column.parentNode.querySelectorAll("a")) each.setAttribute("tabindex", each === column ? "0" : "-1");
    column.closest("figure").querySelector(".at").textContent = column.querySelector("title").textContent;
  });
  main.addEventListener("keydown", (event) => {
    const column = event.target.closest(".chart a");
    if (!column || event.altKey || event.ctrlKey || event.metaKey) return;
    const all = [...column.parentNode.querySelectorAll("a")], at = all.indexOf(column);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    if (all[next]) all[next].focus();
  });

  // The token of the actions stays in this tab until it is closed: the storage belongs to this address and port alone.
  const tokens = [...document.querySelectorAll("input[name=token]")];
  const known = tokens.length ? sessionStorage.getItem("token") : null;
  for (const each of tokens) {
    if (known) each.value = known;
    each.form.addEventListener("submit", () => sessionStorage.setItem("token", each.value));
  }

  if (!body.dataset.live || !window.EventSource) return;
  let waiting = null;
  const show = (html) => { waiting = replace(html) ? null : html; };
  setInterval(() => { if (waiting !== null) show(waiting); }, 1000);
  const source = new EventSource("/events?view=" + encodeURIComponent(body.dataset.live));
  source.addEventListener("hello", (event) => {
    ahead = Number(event.data) - Date.now();
    if (Math.abs(ahead) < 2000) ahead = 0;
    say("live", "on");
  });
  source.addEventListener("view", (event) => { show(JSON.parse(event.data)); say("live", "on"); });
  source.addEventListener("gone", () => { source.close(); say("this view is gone; reload", "off"); });
  source.onerror = () => say("not connected: what you see may be old", "off");
  window.addEventListener("pagehide", () => source.close());
})();
