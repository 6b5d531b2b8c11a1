// Use the app's shortcuts: those of the message box, and those of a message.
import { toast } from "./dom.js";
import { offered, request, store } from "./store.js";

export const shortcutItems = (type, message) =>
  offered("shortcuts")
    .filter((shortcut) => shortcut.type === type)
    .map((shortcut) => ({
      label: shortcut.name,
      hint: shortcut.description,
      run: () => use(shortcut, message),
    }));

async function use(shortcut, message) {
  const where = message ? { channel: message.channel, ts: message.ts } : {};
  try {
    const body = { callback_id: shortcut.callback_id, user: store.user, ...where };
    const answer = await request("POST", "/control/shortcuts", body);
    if (answer.problem) toast(`${shortcut.name}: ${answer.problem} ${answer.status || ""}`, "bad");
  } catch (error) {
    toast(error.message, "bad");
  }
}
