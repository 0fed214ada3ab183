//! Jobs of local programs: what they report to the coordinator, and where their files lie.

pub mod book;
pub mod layouts;
