// Changes a tree into another one and keeps every element that is in both: focus, selections, open details and
// what somebody is typing stay.

const KEPT = new Set(["open", "title", "hidden"]);

export function morph(from, to) {
  const byKey = new Map();
  for (const child of from.children) if (child.dataset.key) byKey.set(child.dataset.key, child);
  const wanted = [...to.childNodes];
  const keys = new Set(wanted.map(keyOf));
  // First remove what is gone: then what stays need not move. An element that moves loses the focus.
  for (const [key, child] of byKey) if (!keys.has(key)) child.remove();
  let at = from.firstChild;
  wanted.forEach((each, index) => {
    const key = keyOf(each);
    const known = key ? byKey.get(key) : like(at, each, wanted.slice(index + 1));
    if (!known || !alike(known, each)) {
      from.insertBefore(document.importNode(each, true), at);
      return;
    }
    if (!key) at = removed(at, known);
    if (known === at) at = at.nextSibling;
    else from.insertBefore(known, at);
    update(known, each);
  });
  removed(at, null);
}

function keyOf(node) {
  return node.dataset?.key;
}

// The next element that is like the wanted one. What stands before it must be gone: nothing that follows the wanted
// one is like it.
function like(at, wanted, following) {
  if (wanted.nodeType !== Node.ELEMENT_NODE) return at && alike(at, wanted) ? at : null;
  for (; at && !alike(at, wanted); at = at.nextSibling) {
    if (at.nodeType === Node.ELEMENT_NODE && following.some((each) => alike(at, each))) return null;
  }
  return at;
}

// Removes the nodes before `until`; returns it.
function removed(at, until) {
  while (at !== until) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  return until;
}

function alike(one, other) {
  return (
    one.nodeType === other.nodeType &&
    one.nodeName === other.nodeName &&
    (one.dataset?.key ?? null) === (other.dataset?.key ?? null) &&
    (one.id ?? "") === (other.id ?? "") &&
    labelOf(one) === labelOf(other)
  );
}

function labelOf(node) {
  return node.getAttribute?.("aria-labelledby") ?? null;
}

function update(known, wanted) {
  if (known.nodeType !== Node.ELEMENT_NODE) {
    if (known.nodeValue !== wanted.nodeValue) known.nodeValue = wanted.nodeValue;
    return;
  }
  if (known.dataset.keep !== undefined) return;
  // The page writes times itself.
  if (known.matches("time") && known.dateTime === wanted.dateTime) return;
  for (const { name } of [...known.attributes]) {
    if (!wanted.hasAttribute(name) && !KEPT.has(name)) known.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (known.getAttribute(name) !== value && !KEPT.has(name)) known.setAttribute(name, value);
  }
  // A field keeps what was typed into it.
  if (!known.matches("textarea, select")) morph(known, wanted);
}
