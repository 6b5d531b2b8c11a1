// Show the app's Home tab beside its messages.
import { block } from "./blocks.js";
import { $, h, toast } from "./dom.js";
import { viewForm } from "./form.js";
import { changed, request, store, workspace } from "./store.js";

export function buildHome() {
  for (const tab of ["home", "messages"]) $(`tab-app-${tab}`).onclick = () => openTab(tab);
  $("app-tabs").addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    openTab(store.appTab === "home" ? "messages" : "home");
    $(`tab-app-${store.appTab}`).focus();
  });
}

// Slack tells the app which tab a person opened.
export async function openTab(tab) {
  store.appTab = tab;
  changed();
  try {
    await request("POST", "/control/home", { user: store.user, tab });
  } catch (error) {
    toast(error.message, "bad");
  }
}

export function renderHome(channel) {
  const possible = Boolean(channel.is_im && store.homeTab && workspace().installed);
  const open = possible && store.appTab === "home";
  $("app-tabs").hidden = !possible;
  for (const tab of ["home", "messages"]) {
    $(`tab-app-${tab}`).setAttribute("aria-selected", String(store.appTab === tab));
    $(`tab-app-${tab}`).tabIndex = store.appTab === tab ? 0 : -1;
  }
  $("home").hidden = !open;
  $("messages").hidden = open;
  $("composer").hidden = open;
  if (open) draw($("home"), store.views.get(store.user)?.home);
}

function draw(panel, view) {
  const wanted = `${store.user} ${view?.hash}`;
  if (panel.shown === wanted) return;
  panel.shown = wanted;
  if (!view) {
    panel.replaceChildren(h("p", { class: "note" }, "The app has not published its Home for you yet."));
    return;
  }
  const focused = panel.contains(document.activeElement) && document.activeElement.dataset.focus;
  const form = viewForm(view);
  form.keepOnly(view.blocks);
  panel.replaceChildren(...view.blocks.map((part) => block(part, form)));
  if (focused) panel.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}
