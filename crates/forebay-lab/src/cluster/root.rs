//! What only root may do.

use crate::LabError;

/// Checks that root runs `forebay lab COMMAND`.
///
/// # Errors
/// If the user is not root, with what to do.
pub fn need_root(command: &str) -> Result<(), LabError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(LabError::new(format!(
        "`forebay lab {command}` needs root: it works with network namespaces, links and mounts; try `sudo forebay lab \
         {command}`. `forebay lab slowfs` needs less"
    )))
}
