//! A turn that the service sends elsewhere this once: what its answer says of the binding that it leaves for now.
//!
//! The answer tells the version of that binding, not its slot. Who is spilled, and where to, is the service's to say.

use super::{Binding, Here};
use crate::contract::{Outcome, RouteReply};
use crate::id::Version;
use crate::session::Session;

/// The service's word for such a turn.
const SPILLED: &str = "spilled";

pub(super) fn is_spilled(reply: &RouteReply) -> bool {
    reply.outcome == Outcome::Unpinned && reply.reason == SPILLED
}

/// Version of the binding that the turn has all the same; older services do not tell it.
pub(super) fn version(reply: &RouteReply) -> Option<Version> {
    Some(reply.version).filter(|version| is_spilled(reply) && *version > Version::default())
}

/// What the session's last turn ends.
pub(super) fn ends(here: Here<'_>, session: Session, reply: &RouteReply) -> Option<Binding> {
    let version = version(reply).filter(|_| here.turn.last)?;
    Some(Binding { session, pool: here.pool.name.clone(), version })
}
