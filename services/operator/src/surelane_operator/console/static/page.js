// Starts what the page needs: times, the menu, shortcuts, actions, the live content.
import { answerActions } from "./actions.js";
import { nameCells } from "./cards.js";
import { follow } from "./live.js";
import { hiddenParts } from "./payload.js";
import { picking } from "./picking.js";
import { askTimes, sayTimes } from "./times.js";

function menu() {
  const button = document.querySelector("#menu");
  const sidebar = document.querySelector("#navigation");
  const show = (open) => {
    sidebar.classList.toggle("open", open);
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => show(!sidebar.classList.contains("open")));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && sidebar.classList.contains("open")) {
      show(false);
      button.focus();
    }
  });
  document.querySelector("main").addEventListener("click", () => show(false));
}

function shortcuts() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, dialog");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      document.querySelector("#find").focus();
    }
  });
}

menu();
shortcuts();
askTimes();
sayTimes();
nameCells();
setInterval(sayTimes, 5000);
answerActions();
hiddenParts();
picking();
follow();
