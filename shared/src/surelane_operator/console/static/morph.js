// Changes a tree into another one and keeps every element that is in both: focus, selections, open details and
// what somebody is typing stay.

const KEPT = new Set(["open", "title", "hidden"]);

export function morph(from, to) {
  const byKey = new Map();
  for (const child of from.children) if (child.dataset.key) byKey.set(child.dataset.key, child);
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = wanted.dataset?.key;
    const known = key ? byKey.get(key) : like(at, wanted);
    if (!known || !alike(known, wanted)) {
      from.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    if (known === at) at = at.nextSibling;
    else from.insertBefore(known, at);
    update(known, wanted);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// The next element that is like the wanted one: what stands before it may be new, or gone, and a form must survive that.
function like(at, wanted) {
  if (wanted.nodeType !== Node.ELEMENT_NODE) return at && alike(at, wanted) ? at : null;
  while (at && !alike(at, wanted)) at = at.nextSibling;
  return at;
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
  // The page writes relative times itself.
  if (known.matches("time[data-ago]") && known.dateTime === wanted.dateTime) return;
  for (const { name } of [...known.attributes]) {
    if (!wanted.hasAttribute(name) && !KEPT.has(name)) known.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (known.getAttribute(name) !== value && !KEPT.has(name)) known.setAttribute(name, value);
  }
  // A field keeps what was typed into it.
  if (!known.matches("textarea, select")) morph(known, wanted);
}
