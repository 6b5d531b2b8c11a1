// Make elements. Set text as text only; never parse it as HTML.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "dataset") {
      for (const [key, text] of Object.entries(value)) if (text !== undefined) element.dataset[key] = text;
    } else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export const $ = (id) => document.getElementById(id);

// Change an element's text only if it is new: a status that is written again is read out again.
export function setText(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// Update a list's children to match the items. Change only those with a new signature. An item in which a menu is
// open stays as it is: the menu's closing calls for the next update.
export function reconcile(list, items, make) {
  const old = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let at = list.firstElementChild;
  for (const { key, signature, ...item } of items) {
    let child = old.get(key);
    old.delete(key);
    if (!child || (child.signature !== signature && !child.querySelector("[aria-expanded=true]"))) {
      const fresh = make(item);
      fresh.dataset.key = key;
      fresh.signature = signature;
      if (child) {
        if (child === at) at = fresh;
        const focused = child.contains(document.activeElement) && document.activeElement.dataset.focus;
        child.replaceWith(fresh);
        if (focused) fresh.querySelector(`[data-focus="${focused}"]`)?.focus();
      }
      child = fresh;
    }
    if (child === at) at = at.nextElementSibling;
    else list.insertBefore(child, at);
  }
  for (const gone of old.values()) gone.remove();
}

export function toast(text, kind = "info") {
  const line = h("p", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(line);
  setTimeout(() => line.remove(), 6000);
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
  });
}
