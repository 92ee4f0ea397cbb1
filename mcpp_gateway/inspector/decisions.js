// The user's decisions on proposals: approve, edit, reject and withdraw; and answers to questions.

import { newId } from "./state/ids.js";
import { parseKind } from "./state/kinds.js";
import { amendment, approval, nameOf, rejection, withdrawal } from "./state/proposals.js";
import { answer } from "./state/questions/questions.js";
import { resolution } from "./view/decisions/proposals.js";
import { questionForm } from "./view/decisions/questions.js";
import { askArguments, askQuestion, askReason, showProblem } from "./view/dialogs.js";

export class Decisions {
  /** `send(draft)` sends an answer, or throws an error. */
  constructor(model, send) {
    this._model = model;
    this._send = send;
  }

  approve(proposal) {
    this._decideAtOnce(proposal, approval(proposal, newId()));
  }

  withdraw(proposal) {
    this._decideAtOnce(proposal, withdrawal(proposal));
  }

  edit(proposal) {
    const { kind, payload: { params = {} } } = proposal.envelope;
    // A named call, such as a tool call, keeps its name: only the arguments are edited.
    const isNamed = parseKind(kind).name !== undefined;
    askArguments(nameOf(proposal), isNamed ? params.arguments ?? {} : params, (value) => {
      const changed = isNamed ? { ...params, arguments: value } : value;
      this._decide(proposal, amendment(proposal, newId(), changed));
    });
  }

  reject(proposal) {
    askReason(nameOf(proposal), (reason) => this._decide(proposal, rejection(proposal, reason)));
  }

  answer(question) {
    const { content, read } = questionForm(question);
    askQuestion(content, () => this._reply(question, answer(question, "accept", read())));
  }

  decline(question) {
    this._reply(question, answer(question, "decline"));
  }

  /** Send the answer to a question that is still open. */
  _reply({ envelope }, draft) {
    if (this._model.outbox.answerTo(envelope.id)) return; // a double click
    if (!this._model.questions.get(envelope.id)) showProblem("Not sent", "The question was withdrawn or answered.");
    else this._send(draft);
  }

  /** Answer a proposal, or throw an error if it has been decided in the meantime. */
  _decide(proposal, draft) {
    const now = this._model.proposals.find(proposal.envelope.id, proposal.text);
    const decided = resolution(now ?? { ...proposal, state: "hidden" }, this._model);
    if (decided) throw new Error(`Already decided: ${decided.text}.`);
    this._send(draft);
  }

  _decideAtOnce(proposal, draft) {
    if (this._model.outbox.answerTo(proposal.envelope.id)) return; // a double click
    try {
      this._decide(proposal, draft);
    } catch (error) {
      showProblem("Not sent", error.message);
    }
  }
}
