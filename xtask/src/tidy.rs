//! Stub.
use crate::workspace::Workspace;
use anyhow::Result;
pub(crate) fn command(_workspace: &Workspace, _args: &[String]) -> Result<()> {
    anyhow::bail!("not written yet")
}
