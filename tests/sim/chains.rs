//! Conversations that hang on response ids: each turn names the answer before it, and no header names a session.
//!
//! What a response id stands for is told to the service and kept in pages; whoever was told must know.

use crate::faults::{Cost, Fault};
use crate::request::Request;
use crate::service::TTL;
use crate::world::World;
use routing::contract::{RouteReply, SessionRef};
use routing::flow::{Effect, Next, PageChange};
use routing::hash::response_id;
use routing::header;
use routing::id::SessionId;
use routing::page::Certainty;

/// What a client keeps of a conversation that hangs on response ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    /// The answer the next turn names.
    pub(crate) last: Option<String>,
}

/// The path answers with ids come from.
const RESPONSES: &str = "/v1/responses";

fn alias_of(response: &str) -> SessionId {
    response_id(b"", b"", response.as_bytes())
}

impl World {
    /// The request of a conversation that hangs on response ids: a body that names the last answer, or a path that does.
    pub(crate) fn hang_on(&mut self, request: &mut Request) {
        let Some(chain) = &self.sessions[request.session].chain else { return };
        request.alias = chain.last.as_deref().map(alias_of);
        let shared = &self.envoys[request.at.envoy].shared;
        let page = request.alias.and_then(|alias| shared.record(alias));
        request.alias_known = page.is_some_and(|record| record.aliased().is_some());
        let last = chain.last.clone();
        request.fetches = last.is_some() && !self.in_finals && self.rng.per_mille(150);
        let path = match &last {
            Some(id) if request.fetches => format!("{RESPONSES}/{id}/cancel"),
            _ => RESPONSES.to_owned(),
        };
        if !request.fetches {
            let body = serde_json::json!({"model": "m", "input": "hi", "previous_response_id": last});
            request.body = Some(body.to_string().into_bytes());
        }
        request.headers.insert(header::http::PATH.to_owned(), path);
        if last.is_none() {
            // Whatever an earlier try was called, nobody heard of it.
            let session = &mut self.sessions[request.session];
            (session.id, session.rank_hash) = (None, 0);
            session.landings.clear();
        }
    }

    /// The body that the flow asks for, in two parts; now and then it never comes.
    pub(crate) fn read_body(&mut self, request: &mut Request) -> Next {
        let body = request.body.clone().unwrap_or_default();
        if self.faults_on && self.rng.per_mille(30) {
            self.fired.count(Fault::BodyMissing);
            request.bodiless = true;
            if self.sessions[request.session].chain.is_some() {
                self.cost(request.session, Cost::ChainBroken);
            }
            let (next, effects) =
                self.step(request, |flow, env, head, out| flow.body_missing(env, head, out));
            return self.carry_out(request, effects, next);
        }
        let at = self.rng.below(body.len());
        let mut next = Next::Read;
        for (part, end) in [(&body[..at], false), (&body[at..], true)] {
            if next == Next::Read {
                let step = self.step(request, |flow, env, head, out| flow.body(env, head, part, end, out));
                next = self.carry_out(request, step.1, step.0);
            }
        }
        next
    }

    /// The session of a conversation without a key, as soon as the flow names it.
    pub(crate) fn learn_session(&mut self, request: &Request, effect: &Effect) {
        if self.sessions[request.session].chain.is_none() {
            return;
        }
        let named = match effect {
            Effect::Route { request, .. } => request.session.filter(|_| request.alias.is_none()),
            // Of two halves the page does not say which is which.
            Effect::Page(PageChange::Put(record))
                if !self.plan.extra.split
                    && matches!(record.certainty, Certainty::Bound | Certainty::Held) =>
            {
                Some(SessionRef { id: record.id, rank_hash: record.rank_hash })
            }
            _ => None,
        };
        let session = &mut self.sessions[request.session];
        if let Some(named) = named.filter(|_| session.id.is_none() || request.bodiless) {
            (session.id, session.rank_hash) = (Some(named.id), named.rank_hash.0);
        }
    }

    /// The engine's answer has an id, and the client names it from now on.
    pub(crate) fn answer_id(&mut self, request: &mut Request) {
        if self.sessions[request.session].chain.is_none() || request.fetches || !request.accepted {
            return;
        }
        let id = format!("resp_{}", request.id);
        if request.flow.wants_response_body() {
            self.fired.count(Fault::ResponseIdLearned);
            let body = serde_json::json!({"id": id, "object": "response"}).to_string();
            let at = self.rng.below(body.len());
            for (part, end) in [(&body[..at], false), (&body[at..], true)] {
                let ((), effects) = self
                    .step(request, |flow, env, _, out| flow.response_body(env, part.as_bytes(), end, out));
                self.carry_out(request, effects, Next::Continue);
            }
        }
        if let Some(chain) = &mut self.sessions[request.session].chain {
            chain.last = Some(id);
        }
    }

    /// Nobody knew the answer that this turn named: nobody had been told, then.
    pub(crate) fn chain_broke(&mut self, request: &Request) {
        if request.alias.is_none() {
            return;
        }
        self.fired.count(Fault::ResponseIdUnknown);
        self.cost(request.session, Cost::ChainBroken);
        if request.alias_known && !request.bodiless {
            self.violate("a response id that was learned is known", "its page has it");
        }
    }

    /// What the service says of a response id it was told of.
    pub(crate) fn check_alias(&mut self, alias: SessionId, reply: &RouteReply) {
        let told = self.service.aliases.get(&alias).filter(|(at, _)| self.service_now().since(*at) < TTL);
        let Some((_, session)) = told else { return };
        if reply.session != Some(*session) {
            let found = format!("{alias:?} is of {session:?}, the answer is of {:?}", reply.session);
            self.violate("a response id that was told is known", &found);
        }
        self.fired.count(Fault::ResponseIdKnown);
    }
}
