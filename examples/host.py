#!/usr/bin/env python3
"""A host that keeps bindings of its own in step with rankpin; docs/HOSTS.md says how. Standard library only.

The service is started with `--outside-hosts`.

    host.py follow --url http://127.0.0.1:7460 --writer ray-0       print what changes
    host.py bind   --url http://127.0.0.1:7460 --writer ray-0 --workers w0,w1     bind some sessions, and stay
    host.py demo   --url http://127.0.0.1:7460 --workers w0,w1      two hosts, kept in step through a cut

`Host` is the part to take: it loads a snapshot, follows the stream from its cursor, comes back after a cut where it was, and applies
what it binds itself in batches, the newest of each session.
"""
import argparse
import collections
import hashlib
import http.client
import itertools
import json
import socket
import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass, replace

BATCH = 1024  # bindings of one apply; the service takes 4096
SILENCE_S = 16  # the stream says something every 5 s: after this it is dead
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)  # pauses between attempts; the last one goes on
PENDING_MAX = 65_536  # sessions whose newest binding waits to be applied; past it `bind` waits


@dataclass(frozen=True, slots=True)
class Binding:
    """What everybody agrees on about one session."""

    id: str  # 32 hex digits, as `rankpin hash KEY` prints them
    rank_hash: int
    version: tuple  # (seq, writer): the greater one wins
    target: tuple | None  # (worker, rank or None); None: released
    until: float  # on this machine's monotonic clock, in seconds
    generation: int = 0

    @staticmethod
    def read(wire, now):
        version, target = wire["version"], wire.get("target")
        return Binding(
            id=wire["id"],
            rank_hash=wire["rank_hash"],
            version=(version["seq"], version["writer"]),
            target=target and (target["worker"], target.get("rank")),
            until=now + wire["expires_in_ms"] / 1000,
            generation=wire.get("generation", 0),
        )

    def write(self, now):
        wire = {
            "id": self.id,
            "rank_hash": self.rank_hash,
            "version": {"seq": self.version[0], "writer": self.version[1]},
            "expires_in_ms": max(1, int((self.until - now) * 1000)),
        }
        if self.target:
            worker, rank = self.target
            wire["target"] = {"worker": worker} if rank is None else {"worker": worker, "rank": rank}
        if self.generation:
            wire["generation"] = self.generation
        return wire

    def beats(self, other):
        """Whether this one is to be kept: a higher version, a release of the same one, a later end."""
        return (self.version, self.target is None, self.until) > (other.version, other.target is None, other.until)


class Refused(Exception):
    """An answer that says no."""

    def __init__(self, status, problem):
        faults = "".join(f"; {fault.get('path')}: {fault.get('problem')}" for fault in problem.get("errors", []))
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')}{faults}")
        self.status, self.problem = status, problem


class Link:
    """One connection to the service; a new one after each failure. An unplugged one fails."""

    def __init__(self, url, token, timeout):
        parts = urllib.parse.urlsplit(url)
        self.address, self.timeout, self.plugged = (parts.hostname, parts.port or 80), timeout, True
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        self.connection = None

    def ask(self, method, path, body=None):
        """The answer, its body not read yet."""
        if not self.plugged:
            raise ConnectionError("unplugged")
        if self.connection is None:
            self.connection = http.client.HTTPConnection(*self.address, timeout=self.timeout)
        self.connection.request(method, path, body, self.headers)
        answer = self.connection.getresponse()
        if answer.status != 200:
            text = answer.read()
            raise Refused(answer.status, json.loads(text) if text.startswith(b"{") else {})
        return answer

    def plug(self, plugged):
        """Pulls the plug, or puts it back."""
        self.plugged, connection = plugged, self.connection
        if not plugged and connection is not None and connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class Host:
    """A table of bindings that is kept in step. `number` is this host's in versions."""

    def __init__(self, url, writer, token=None):
        self.url, self.writer, self.token = url, writer, token
        self.number, self.cursor, self.clock = 0, None, 0
        self.table, self.pending = {}, {}
        self.lock = threading.Lock()
        self.work, self.room = threading.Condition(self.lock), threading.Condition(self.lock)
        self.connected, self.stopped = threading.Event(), threading.Event()
        self.in_flight = 0
        self.parked = collections.Counter()  # by target: bindings that wait at the service for its declaration
        self.counts = dict.fromkeys(("heard", "own_heard", "applied", "lost_races", "parked", "rejected",
                                     "snapshots", "streams", "failures"), 0)
        self.stream_link, self.apply_link = self._link(SILENCE_S), self._link(10)

    def start(self):
        for loop in (self._follow, self._apply):
            threading.Thread(target=self._for_ever, args=(loop,), daemon=True).start()

    def stop(self):
        self.stopped.set()
        with self.lock:
            self.work.notify_all()

    # What the host does with its sessions.

    def get(self, session):
        """The slot of a session: (worker, rank), or None."""
        with self.lock:
            known = self.table.get(session)
        return known.target if known and known.until > time.monotonic() else None

    def bind(self, session, rank_hash, target, ttl_s=1800):
        """Binds or moves a session; with the target None it is released. The version is above whatever is known of it."""
        with self.lock:
            self.room.wait_for(lambda: len(self.pending) < PENDING_MAX or self.stopped.is_set())
            known = self.table.get(session)
            self.clock = max(self.clock, known.version[0] if known else 0) + 1
            version = (self.clock, self.number)
            self._put(Binding(session, rank_hash, version, target, time.monotonic() + ttl_s))

    def touch(self, session, ttl_s=1800):
        """A turn of it runs or ended: the same version, a later end. At least every ttl/4 while it runs."""
        with self.lock:
            known = self.table.get(session)
            if known and known.target:
                self._put(replace(known, until=time.monotonic() + ttl_s))

    def _put(self, binding):
        self.table[binding.id] = self.pending[binding.id] = binding
        self.work.notify()

    # Following.

    def load(self):
        """Reads everything; what the service does not know, or knows older, is applied to it again."""
        link = self._link(10)
        whole, seen = False, {}
        try:
            answer = link.ask("GET", f"/v1/bindings/snapshot?writer={urllib.parse.quote(self.writer, safe='')}")
            for line in answer:
                page = json.loads(line)
                cursor = page.get("cursor")
                if cursor:
                    first, number = cursor, page["writer"]
                now = time.monotonic()
                seen.update((wire["id"], Binding.read(wire, now)) for wire in page["bindings"])
                whole = "total" in page
        finally:
            link.close()
        if not whole:
            raise ConnectionError("the snapshot broke off")
        self.number, self.cursor = number, first
        self._take(seen.values())
        self._tell_again(seen)
        self.counts["snapshots"] += 1

    def _tell_again(self, seen):
        now = time.monotonic()
        with self.lock:
            for session, known in self.table.items():
                theirs = seen.get(session)
                if known.until > now and (theirs is None or known.version > theirs.version):
                    self.pending.setdefault(session, known)
            self.work.notify()

    def _take(self, bindings):
        with self.lock:
            for binding in bindings:
                known = self.table.get(binding.id)
                if known is None or binding.beats(known):
                    self.table[binding.id] = binding
                waiting = self.pending.get(binding.id)
                if waiting and binding.version > waiting.version:
                    del self.pending[binding.id]

    def _forget(self, now):
        """What is over for everybody; looked at when nothing happens."""
        with self.lock:
            for session in [session for session, known in self.table.items() if known.until < now]:
                del self.table[session]

    def _follow(self):
        if self.cursor is None:
            self.load()
        after = urllib.parse.urlencode({"writer": self.writer, "after": self.cursor})
        try:
            answer = self.stream_link.ask("GET", f"/v1/bindings/stream?{after}")
        except Refused as refused:
            if refused.status == 410:  # not everything since is known any more
                self.cursor = None
                return
            raise
        try:
            self._read(answer)
        finally:
            self.connected.clear()

    def _read(self, answer):
        for line in answer:
            batch = json.loads(line)
            if "writer" in batch:
                self.number = batch["writer"]
                self.counts["streams"] += 1
                self.connected.set()
            now = time.monotonic()
            heard = [Binding.read(wire, now) for wire in batch["bindings"]]
            self._take(heard)
            self.counts["heard"] += len(heard)
            self.counts["own_heard"] += sum(binding.version[1] == self.number for binding in heard)
            if not heard:
                self._forget(now)
            # Only now: what was not taken is asked for again.
            self.cursor = batch["cursor"]
            if batch.get("closed") == "gap":
                self.cursor = None
        raise ConnectionError("the stream ended")

    # Applying.

    def _apply(self):
        with self.lock:
            self.work.wait_for(lambda: self.pending or self.stopped.is_set())
            batch = [self.pending.pop(session) for session in list(itertools.islice(self.pending, BATCH))]
            self.in_flight = len(batch)
        try:
            self._send(batch)
        except Exception:
            with self.lock:  # newer ones of the same session stay
                self.pending = {binding.id: binding for binding in batch} | self.pending
            raise
        finally:
            with self.lock:
                self.in_flight = 0
                self.room.notify_all()

    def _send(self, batch):
        now = time.monotonic()
        body = json.dumps({"writer": self.writer, "bindings": [binding.write(now) for binding in batch]})
        outcomes = json.loads(self.apply_link.ask("POST", "/v1/bindings/apply", body).read())["outcomes"]
        # What ours lost against: the stream may have told it long ago.
        now = time.monotonic()
        self._take([Binding.read(outcome["known"], now) for outcome in outcomes if "known" in outcome])
        for binding, outcome in zip(batch, outcomes):
            if outcome["outcome"] == "parked" and binding.target:
                self.parked[binding.target] += 1
            count = {"ignored_conflict": "lost_races", "ignored_stale": "lost_races"}.get(outcome["outcome"])
            self.counts[count or {"parked": "parked", "rejected": "rejected"}.get(outcome["outcome"], "applied")] += 1
            if outcome["outcome"] == "rejected":
                print(f"{self.writer}: rejected: {outcome.get('reason')}", file=sys.stderr)

    def _for_ever(self, loop):
        link = self.stream_link if loop == self._follow else self.apply_link
        failures = 0
        while not self.stopped.is_set():
            try:
                loop()
                failures = 0
            except (OSError, http.client.HTTPException, ValueError, Refused) as error:
                link.close()
                self.counts["failures"] += 1
                if isinstance(error, Refused) and error.status != 503 and error.problem.get("code") != "writer_is_streaming":
                    print(f"{self.writer}: {error}", file=sys.stderr)
                # A stream that stood for a while is no failure in a row.
                failures = min(failures + 1, len(RETRY_S)) if not self.connected.is_set() else 0
                time.sleep(RETRY_S[max(0, failures - 1)])

    def _link(self, timeout):
        return Link(self.url, self.token, timeout)

    def idle(self):
        with self.lock:
            return not self.pending and not self.in_flight


# The demo: two hosts, 50,000 sessions, one cut.


def session_of(name):
    """Stands in for `rankpin hash`: any 128 bits name a session, as long as all who share it make them the same way."""
    digest = hashlib.blake2b(name.encode(), digest_size=24).digest()
    return digest[:16].hex(), int.from_bytes(digest[16:], "big")


def stage(name, **more):
    print(json.dumps({"stage": name, **more}), flush=True)


def wait_for(what, condition, patience_s=120, remark=lambda: None):
    """Past a moment the remark, if there is one by then, is printed once."""
    began, said = time.monotonic(), None
    while not condition():
        waited = time.monotonic() - began
        if waited > patience_s:
            sys.exit(f"waited {patience_s} s in vain for: {what}")
        if said is None and waited > REMARK_S:
            said = remark()
            if said:
                print(said, file=sys.stderr, flush=True)
        time.sleep(0.005)


def parked(*hosts):
    """What the service keeps parked, and why; None: nothing."""
    where = sum((host.parked for host in hosts), collections.Counter())
    if not where:
        return None
    targets = ", ".join(worker if rank is None else f"{worker} rank {rank}" for worker, rank in sorted(where, key=str))
    return (f"{where.total()} bindings are parked: the service has no worker, or no such rank of it, declared as {targets}; "
            "they are forgotten after 60 s (GET /v1/workers of its control listener: what is declared)")


def begin(*hosts):
    """Loads and starts them; a service that is away or refuses them ends it all, in one line."""
    for host in hosts:
        try:
            host.load()
        except (OSError, http.client.HTTPException, ValueError, Refused) as error:
            sys.exit(f"{host.writer}: {host.url}: {error}")
        host.start()


def bind_all(host, span, workers):
    for number in span:
        session, rank_hash = session_of(f"{host.writer}/{number}")
        host.bind(session, rank_hash, (workers[number % len(workers)], None))


class Demo:
    def __init__(self, args):
        self.args, self.workers = args, args.workers.split(",")
        token = token_of(args)
        self.a = Host(args.url, "demo-a", token)
        self.b = Host(args.second_url or args.url, "demo-b", token)
        self.hosts, self.share = (self.a, self.b), args.sessions // 2

    def both(self, *spans):
        """Each host binds in a thread of its own."""
        pairs = zip(self.hosts, spans)
        threads = [threading.Thread(target=bind_all, args=(*pair, self.workers)) for pair in pairs]
        for thread in threads:
            thread.start()
        return threads

    def run(self):
        begin(*self.hosts)
        wait_for("both streams", lambda: all(host.connected.is_set() for host in self.hosts))
        half, began = self.share // 2, time.monotonic()
        for thread in self.both(range(half), range(half)):
            thread.join()
        wait_for("the first half", lambda: self.same(2 * half), remark=lambda: parked(*self.hosts))
        rate = 2 * half / (time.monotonic() - began)
        stage("half", bound=2 * half, bound_and_heard_per_s=round(rate))
        self.cut()
        began = time.monotonic()
        behind = len(self.a.pending)
        self.mend()
        expected = 2 * self.share + CONTESTED
        wait_for("both in step", lambda: self.same(expected))
        return self.report(rate, behind, time.monotonic() - began, expected)

    def cut(self):
        """While the first host is cut off, both go on: they bind, and each changes what the other may change, too."""
        stage("cut")
        if self.args.cut == "self":
            self.plug(False)
        wait_for("the cut", lambda: not self.a.connected.is_set())
        half = self.share // 2
        threads = self.both(range(half, self.share), range(half, self.share))
        for number in range(CHANGED):
            session, rank_hash = session_of(f"demo-a/{number}")
            self.b.bind(session, rank_hash, None if number % 4 == 0 else (self.workers[-1], None))
        for host, worker in zip(self.hosts, (self.workers[0], self.workers[-1])):
            for number in range(CONTESTED):
                session, rank_hash = session_of(f"contested/{number}")
                host.bind(session, rank_hash, (worker, None))
        for thread in threads:
            thread.join()
        wait_for("the second host's bindings", self.b.idle)

    def mend(self):
        stage("mend", waiting=len(self.a.pending))
        self.plug(True)

    def plug(self, plugged):
        for link in (self.a.stream_link, self.a.apply_link):
            link.plug(plugged)

    def same(self, expected):
        """Whether both have the same of everything."""
        if any(len(host.table) != expected or not host.idle() for host in self.hosts):
            return False
        return not differing(self.a.table, self.b.table)

    def report(self, rate, behind, took, expected):
        fresh = Host(self.args.second_url or self.args.url, "demo-fresh", self.b.token)
        fresh.load()
        lost = max(len(differing(host.table, fresh.table)) for host in self.hosts)
        done = {
            "sessions": expected,
            "lost": lost + abs(expected - len(fresh.table)),
            "own_heard": sum(host.counts["own_heard"] for host in self.hosts),
            "snapshots": [host.counts["snapshots"] for host in self.hosts],
            "streams": [host.counts["streams"] for host in self.hosts],
            "rejected": sum(host.counts["rejected"] + host.counts["parked"] for host in self.hosts),
            "released": sum(binding.target is None for binding in fresh.table.values()),
            "bound_and_heard_per_s": round(rate),
            "waiting_at_mend": behind,
            "in_step_after_mend_ms": round(took * 1000),
        }
        stage("done", **done)
        kept = done["lost"] == done["own_heard"] == done["rejected"] == 0
        return 0 if kept and done["snapshots"] == [1, 1] and done["streams"] == [2, 1] else 1


REMARK_S = 3
CHANGED = 200  # sessions of the first host that the second one moves, every fourth of them releases, while the first is cut off
CONTESTED = 100  # sessions that both bind during the cut


def differing(one, other):
    def told(table):
        return {(binding.id, binding.version, binding.target) for binding in dict(table).values()}

    return told(one) ^ told(other)


def follow(args):
    class Shown(Host):
        def _take(self, bindings):
            bindings = list(bindings)
            for binding in bindings:
                print(binding.id, "v%d/%d" % binding.version, binding.target or "released", flush=True)
            super()._take(bindings)

    begin(Shown(args.url, args.writer, token_of(args)))
    threading.Event().wait()


def bind(args):
    host = Host(args.url, args.writer, token_of(args))
    begin(host)
    bind_all(host, range(args.sessions), args.workers.split(","))
    wait_for("the service", host.idle)
    stage("bound", **host.counts)
    if host.parked:
        print(parked(host), file=sys.stderr, flush=True)
    threading.Event().wait()


def token_of(args):
    if not args.token_file:
        return None
    with open(args.token_file, encoding="ascii") as file:
        return file.read().strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("follow", "bind", "demo"):
        sub = verbs.add_parser(verb)
        sub.add_argument("--url", required=True, help="the service's data listener")
        sub.add_argument("--token-file", help="its token, if it has one")
    for verb in ("follow", "bind"):
        verbs.choices[verb].add_argument("--writer", required=True, help="this host's name, the same after a restart")
    for verb in ("bind", "demo"):
        verbs.choices[verb].add_argument("--workers", required=True, help="declared workers, by comma")
        verbs.choices[verb].add_argument("--sessions", type=int, default=50_000)
    demo = verbs.choices["demo"]
    demo.add_argument("--second-url", help="where the second host asks, if elsewhere")
    demo.add_argument("--cut", choices=("self", "outside"), default="self",
                      help="outside: someone cuts the first host off at stage `cut`, and lets it back at `mend`")
    args = parser.parse_args()
    run = {"follow": follow, "bind": bind, "demo": lambda args: Demo(args).run()}
    sys.exit(run[args.verb](args))


if __name__ == "__main__":
    main()
