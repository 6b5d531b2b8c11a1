// Keep what a person enters into the inputs of one message or view, also while it is drawn anew.
import { toast } from "./dom.js";
import { request, store } from "./store.js";

const forms = new Map();

// `place` names the message or view in the control API.
export function formOf(key, place) {
  if (!forms.has(key)) forms.set(key, new Form(place));
  return forms.get(key);
}

export const messageForm = (message) =>
  formOf(`${message.channel}/${message.ts}`, { channel: message.channel, ts: message.ts });
export const viewForm = (view) => formOf(view.id, { view_id: view.id });

class Form {
  constructor(place) {
    this.place = place;
    this.values = {};
  }

  // What was entered; undefined if the input was not touched.
  entered(block, element) {
    return this.values[block.block_id]?.[element.action_id];
  }

  enter(block, element, value) {
    this.values[block.block_id] = { ...this.values[block.block_id], [element.action_id]: value };
  }

  // Forget the inputs that the view has no longer, as Slack does after an update.
  keepOnly(blocks) {
    const kept = new Set(blocks.map((block) => block.block_id));
    for (const id of Object.keys(this.values)) if (!kept.has(id)) delete this.values[id];
  }

  #body(block, element) {
    const named = { action_id: element.action_id, block_id: block.block_id };
    return { ...this.place, ...named, user: store.user, values: this.values };
  }

  // Return why the app did not take the action; null if it did.
  async act(block, element, value = null) {
    try {
      const answer = await request("POST", "/control/actions", { ...this.#body(block, element), value });
      return answer.problem && `${answer.problem} ${answer.status || ""}`.trim();
    } catch (error) {
      toast(error.message, "bad");
      return null;
    }
  }

  options(block, element, query) {
    return request("POST", "/control/options", { ...this.#body(block, element), query });
  }
}
