// Sends the forms that change something to the API: <form data-action="POST /v1/…">.
import { refresh } from "./live.js";

const csrf = document.querySelector('meta[name="csrf"]').content;

export function toast(text, bad = false) {
  const note = document.createElement("p");
  note.className = bad ? "toast bad" : "toast";
  note.textContent = text;
  document.querySelector("#toasts").append(note);
  setTimeout(() => note.remove(), bad ? 12000 : 6000);
}

export async function confirmed(text) {
  const dialog = document.querySelector("#confirm");
  dialog.querySelector("#confirm-text").textContent = text;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue === "yes";
}

// Calls the API; returns its answer, or null after saying what went wrong.
export async function call(method, address, body) {
  const request = { method, headers: { "X-CSRF-Token": csrf, Accept: "application/json" } };
  if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers["Content-Type"] = "application/json";
  }
  try {
    const response = await fetch(address, request);
    const answer = response.status === 204 ? {} : await response.json().catch(() => ({}));
    if (response.ok) return answer;
    toast(response.status === 401 ? "You are no longer signed in. Reload the page." : (answer.error ?? `The answer was ${response.status}.`), true);
  } catch {
    toast("The service does not answer. Nothing is known of what it did.", true);
  }
  return null;
}

// The fields of a form as JSON. Text stays text, unless the field says what it is: data-json, data-list, data-number.
// An empty field is left out.
export function fieldsOf(form) {
  const fields = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || field.type === "submit") continue;
    if (field.type === "radio" && !field.checked) continue;
    if (field.type === "checkbox") fields[field.name] = field.checked;
    else if (field.value === "") continue;
    else if ("json" in field.dataset) fields[field.name] = JSON.parse(field.value);
    else if ("list" in field.dataset) fields[field.name] = field.value.split(",").filter(Boolean);
    else if (field.type === "number" || "number" in field.dataset) fields[field.name] = Number(field.value);
    else fields[field.name] = field.value;
  }
  return fields;
}

export function filled(text, values) {
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

async function send(form, submitter) {
  const given = submitter?.dataset ?? {};
  const [method, address] = (given.action ?? form.dataset.action).split(" ");
  let fields;
  try {
    fields = fieldsOf(form);
  } catch (error) {
    return toast(`This is not JSON: ${error.message}`, true);
  }
  // A field may be a part of the address: PUT /v1/cron/{name}.
  const target = address.replace(/\{(\w+)\}/g, (_, name) => {
    const value = encodeURIComponent(fields[name] ?? "");
    delete fields[name];
    return value;
  });
  const question = given.confirm ?? form.dataset.confirm;
  if (question && !(await confirmed(question))) return;
  const buttons = [...form.querySelectorAll("button:enabled")];
  for (const button of buttons) button.disabled = true;
  const body = Object.keys(fields).length || form.hasAttribute("data-body") ? fields : undefined;
  const answer = await call(method, target, body);
  for (const button of buttons) button.disabled = false;
  if (answer === null) return;
  const then = filled(given.then ?? form.dataset.then ?? "", answer);
  if (then && then !== location.pathname) return location.assign(then);
  toast(filled(given.done ?? form.dataset.done ?? "Done.", answer));
  form.closest("dialog")?.close();
  await refresh();
}

export function answerActions() {
  document.addEventListener("submit", (event) => {
    if (!event.target.dataset.action) return;
    event.preventDefault();
    send(event.target, event.submitter);
  });
}
