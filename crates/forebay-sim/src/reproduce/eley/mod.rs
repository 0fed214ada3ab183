//! Eley.
pub mod system;
