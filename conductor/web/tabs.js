// What of the page is seen: Talk or Inspect, and tabs with the keys that screen readers announce: arrows, Home and End.
import { keep, recall } from "./store.js";

export function tabs(list) {
  const all = [...list.querySelectorAll('[role="tab"]')];

  function select(chosen) {
    for (const tab of all) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      const panel = document.getElementById(tab.getAttribute("aria-controls"));
      panel.hidden = tab !== chosen;
      if (tab === chosen) panel.dispatchEvent(new Event("shown"));
    }
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) select(tab);
  });
  list.addEventListener("keydown", (event) => {
    const at = all.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const tab = all[(next + all.length) % all.length];
    select(tab);
    tab.focus();
  });
}

/** Talk and Inspect: side by side where there is room, else one at a time. */
export function views() {
  const buttons = [...document.querySelectorAll("[data-show]")];
  const show = (view) => {
    document.body.dataset.view = view;
    for (const button of buttons) button.ariaPressed = String(button.dataset.show === view);
    keep("view", view);
  };
  for (const button of buttons) button.addEventListener("click", () => show(button.dataset.show));
  show(recall("view", "talk"));
}
