// A button with a menu: of shortcuts, of a message's further actions, or an overflow menu.
import { h } from "./dom.js";
import { changed } from "./store.js";

// `items()` returns [{label, hint, run}] when the menu opens.
export function menuButton({ label, face, items, className = "plain", note = "", focus }) {
  const list = h("div", { class: "menu", role: "menu", "aria-label": label, hidden: true });
  const button = h(
    "button",
    {
      type: "button",
      class: className,
      title: label,
      "aria-label": label,
      "aria-haspopup": "menu",
      "aria-expanded": "false",
      dataset: { focus },
    },
    face,
  );
  const whole = h("span", { class: "menu-holder" }, button, list);

  function open() {
    const entries = items();
    list.replaceChildren(
      ...(entries.length
        ? entries.map((item) =>
            h(
              "button",
              {
                type: "button",
                role: "menuitem",
                tabindex: "-1",
                onclick: () => {
                  close();
                  button.focus();
                  item.run();
                },
              },
              h("span", {}, item.label),
              item.hint && h("small", {}, item.hint),
            ),
          )
        : [h("p", { class: "note" }, note)]),
    );
    list.hidden = false;
    button.setAttribute("aria-expanded", "true");
    place();
    list.querySelector("[role=menuitem]")?.focus();
  }

  // The menu lies over everything, so that no scrolling part cuts it off.
  function place() {
    const at = button.getBoundingClientRect();
    const above = at.top > innerHeight / 2;
    list.style.top = above ? "auto" : `${at.bottom + 4}px`;
    list.style.bottom = above ? `${innerHeight - at.top + 4}px` : "auto";
    list.style.left = `${Math.max(8, Math.min(at.left, innerWidth - list.offsetWidth - 8))}px`;
  }

  function close() {
    list.hidden = true;
    button.setAttribute("aria-expanded", "false");
    changed();
  }

  button.onclick = () => (list.hidden ? open() : close());
  whole.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    const all = [...list.querySelectorAll("[role=menuitem]")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      close();
      button.focus();
    } else if (step) all.at((all.indexOf(document.activeElement) + step) % all.length)?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  whole.addEventListener("focusout", (event) => {
    if (!whole.contains(event.relatedTarget)) close();
  });
  return whole;
}
