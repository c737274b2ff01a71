// Where one types: Enter says it, Shift+Enter is a new line, and suggestions for a first time.
import { button, byId, el } from "./dom.js";

const SUGGESTIONS = ["Switch on the lamp in the hall", "What is 17% of 2,340?", "Delete the note Milk"];

export function composer(say) {
  const words = byId("words");
  const form = byId("composer");

  function submit(event) {
    event.preventDefault();
    const text = words.value.trim();
    if (!text) return;
    words.value = "";
    say(text);
  }

  form.addEventListener("submit", submit);
  words.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  byId("suggestions").append(
    ...SUGGESTIONS.map((text) => el("li", {}, button(text, () => (words.focus(), say(text))))),
  );
  return {
    put(text) {
      words.value = text;
      if (!words.checkVisibility()) document.querySelector("[data-show=talk]").click(); // on a phone
      words.focus();
    },
  };
}
