// What a page asks of a replayed pod: the user's changes, and where the replay has arrived.

const ASK_MS = 400; // how often the state of a replay is asked for

export class ReplayRequests {
  constructor(model, connection) {
    this._model = model;
    this._connection = connection;
  }

  start() {
    setInterval(() => this.follow(), ASK_MS);
  }

  /** Play, pause, seek or change the speed. */
  ask(payload) {
    this._send(this._model.replayControl.ask(payload));
  }

  /** Ask again for what a lost connection did not answer, or where a replay that is playing has arrived. */
  follow() {
    const { replay, replayControl, session } = this._model;
    if (!replay || !this._connection.isOpen || session.isReplaying || document.hidden) return;
    const again = replayControl.repeat();
    if (again) this._send(again);
    else if (replay.isPlaying) this._send({ kind: "pod/replay", payload: {} });
  }

  _send(draft) {
    this._connection.send(this._model.outbox.write(draft, Date.now()));
  }
}
