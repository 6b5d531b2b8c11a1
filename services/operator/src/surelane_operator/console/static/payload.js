// Shows a payload when somebody asks for it: <button data-payload="/v1/jobs/{id}/payload" data-into="element">.
import { call } from "./actions.js";

const told = (error) =>
  `${error.step ? `${error.step}, ` : ""}attempt ${error.attempt}: ${error.traceback ?? `${error.type}: ${error.message}`}`;

export function hiddenParts() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-payload]");
    if (!button) return;
    button.disabled = true;
    const answer = await call("GET", button.dataset.payload);
    button.disabled = false;
    if (answer === null) return;
    const place = document.getElementById(button.dataset.into);
    const text = JSON.stringify(answer.payload, null, 2);
    for (const target of place.querySelectorAll("[data-shows]")) {
      if (target.matches("textarea")) target.value = text;
      else target.textContent = text;
    }
    const errors = place.querySelector("[data-errors]");
    errors.textContent = answer.errors.map(told).join("\n\n");
    errors.hidden = !answer.errors.length;
    place.hidden = false;
    button.hidden = true;
    place.querySelector("[data-shows]").focus();
  });
}
