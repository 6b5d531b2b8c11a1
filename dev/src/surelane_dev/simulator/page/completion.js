// Offer the app's slash commands while a person types one.
import { h } from "./dom.js";
import { offered } from "./store.js";

// `text` is the message box. `done` is called after a command was put into it.
export function completion(text, id, done) {
  const list = h("ul", {
    class: "listbox completion",
    role: "listbox",
    id: `${id}-commands`,
    "aria-label": "Commands",
    hidden: true,
  });
  text.setAttribute("aria-autocomplete", "list");
  text.setAttribute("aria-controls", list.id);
  let found = [];
  let active = 0;

  function show() {
    const typed = text.value;
    found = /^\/\S*$/.test(typed)
      ? offered("commands").filter(({ command }) => command.startsWith(typed) && command !== typed)
      : [];
    active = 0;
    list.hidden = !found.length;
    list.replaceChildren(
      ...found.map((each, at) =>
        h(
          "li",
          {
            role: "option",
            id: `${list.id}-${at}`,
            onmousedown: (event) => event.preventDefault(),
            onclick: () => take(each),
          },
          h("span", {}, h("b", {}, each.command), each.usage_hint && ` ${each.usage_hint}`),
          h("small", {}, each.description),
        ),
      ),
    );
    mark(0);
  }

  function mark(at) {
    active = at;
    [...list.children].forEach((item, number) => {
      item.classList.toggle("active", number === at);
      item.setAttribute("aria-selected", String(number === at));
    });
    if (list.hidden) text.removeAttribute("aria-activedescendant");
    else text.setAttribute("aria-activedescendant", `${list.id}-${at}`);
  }

  function hide() {
    list.hidden = true;
    text.removeAttribute("aria-activedescendant");
  }

  function take({ command }) {
    text.value = `${command} `;
    hide();
    text.focus();
    done();
  }

  // Return whether the key was for the list.
  function key(event) {
    if (list.hidden) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) mark((active + step + found.length) % found.length);
    else if (event.key === "Enter" || event.key === "Tab") take(found[active]);
    else if (event.key === "Escape") hide();
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  return { list, show, hide, key };
}
