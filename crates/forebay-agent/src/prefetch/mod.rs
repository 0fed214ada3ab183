//! Pages that are fetched before anybody reads them: loads that a user has requested, and what the
//! coordinator has planned.

pub mod load;
pub mod orders;
