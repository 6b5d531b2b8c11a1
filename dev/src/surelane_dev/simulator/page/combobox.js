// A text field with a list of options: for menus with search, with several choices, or with options from the app.
import { h } from "./dom.js";
import { changed } from "./store.js";

let numbers = 0;

// `load(query)` returns {groups: [{label, options: [{value, text}]}], note}. `change(chosen)` gets the chosen options.
export function combobox({ label, placeholder, multiple, most, chosen, load, change, pause = 0, focus, id }) {
  const listId = `options-${++numbers}`;
  let shown = [];
  let active = -1;
  let latest = 0;
  let timer;
  const list = h("ul", { class: "listbox", role: "listbox", id: listId, hidden: true, "aria-label": label });
  const note = h("p", { class: "note listbox-note", role: "status", hidden: true });
  const chips = h("span", { class: "chosen" });
  const input = h("input", {
    id,
    role: "combobox",
    autocomplete: "off",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": listId,
    "aria-label": id ? undefined : label,
    dataset: { focus },
  });
  const field = h("div", { class: "combo-field" }, multiple && chips, input);
  const popup = h("div", { class: "combo-popup", hidden: true }, list, note);
  const whole = h("div", { class: "combo" }, field, popup);

  function draw() {
    if (multiple)
      chips.replaceChildren(
        ...chosen.map((option) =>
          h(
            "button",
            {
              type: "button",
              class: "chosen-one",
              "aria-label": `Remove ${option.text}`,
              onclick: () => choose(option),
            },
            option.text,
            " ✕",
          ),
        ),
      );
    else input.value = chosen[0]?.text || "";
    input.placeholder = multiple && chosen.length ? "" : placeholder || "Select an option";
  }

  async function open(query = input.value) {
    const number = ++latest;
    popup.hidden = false;
    input.setAttribute("aria-expanded", "true");
    if (!shown.length) say("Loading…");
    const { groups = [], note: text } = await load(query);
    if (number !== latest) return; // a later letter was typed, or the list was closed
    shown = groups.flatMap((group) => group.options);
    mark(-1);
    let at = 0;
    list.replaceChildren(
      ...groups
        .flatMap((group) => [
          group.label && h("li", { class: "group", role: "presentation" }, group.label),
          ...group.options.map((option) => line(option, at++)),
        ])
        .filter(Boolean),
    );
    list.hidden = !shown.length;
    say(text || (shown.length ? "" : "No result"));
    popup.scrollIntoView({ block: "nearest" });
  }

  function line(option, at) {
    const taken = chosen.some(({ value }) => value === option.value);
    return h(
      "li",
      {
        role: "option",
        id: `${listId}-${at}`,
        "aria-selected": String(taken),
        onmousedown: (event) => event.preventDefault(),
        onclick: () => choose(option),
      },
      option.text,
      option.description && h("small", {}, option.description),
    );
  }

  function say(text) {
    note.textContent = text;
    note.hidden = !text;
  }

  function close() {
    latest += 1;
    clearTimeout(timer);
    shown = [];
    list.hidden = true; // while it loads, an opened list shows no option of the query before
    popup.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    if (multiple) input.value = "";
    changed();
  }

  function mark(wanted) {
    const at = wanted < shown.length ? wanted : -1;
    active = at;
    for (const item of list.querySelectorAll("[role=option]"))
      item.classList.toggle("active", item.id === `${listId}-${at}`);
    if (at < 0) input.removeAttribute("aria-activedescendant");
    else {
      input.setAttribute("aria-activedescendant", `${listId}-${at}`);
      document.getElementById(`${listId}-${at}`).scrollIntoView({ block: "nearest" });
    }
  }

  function choose(option) {
    const taken = chosen.some(({ value }) => value === option.value);
    if (!multiple) chosen = [option];
    else if (taken) chosen = chosen.filter(({ value }) => value !== option.value);
    else if (!most || chosen.length < most) chosen = [...chosen, option];
    close();
    draw();
    input.focus();
    change(chosen);
  }

  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(open, pause);
  };
  const isOpen = () => !popup.hidden;
  input.addEventListener("click", () => isOpen() || open(multiple ? input.value : ""));
  input.addEventListener("input", later);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const from = active < 0 && step < 0 ? 0 : active;
    if (step && isOpen()) mark((from + step + shown.length) % (shown.length || 1));
    else if (step) open(multiple ? input.value : "");
    else if (event.key === "Enter" && isOpen()) shown[active] && choose(shown[active]);
    else if (event.key === "Escape" && isOpen()) {
      close();
      draw();
    } else if (event.key === "Backspace" && multiple && !input.value && chosen.length) choose(chosen.at(-1));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  whole.addEventListener("focusout", (event) => {
    if (whole.contains(event.relatedTarget)) return;
    const emptied = !multiple && chosen.length && !input.value;
    close();
    if (emptied) {
      chosen = [];
      change(chosen);
    }
    draw();
  });
  draw();
  return { node: whole, input };
}
