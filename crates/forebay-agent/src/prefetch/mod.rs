//! Pages that are fetched before anybody reads them.
//!
//! | file | what it does |
//! | --- | --- |
//! | `feeder` | takes the pages of files in order, and puts each on its way when it may go |
//! | `load`, `loaded_file` | loads: files that a user has requested, and one of them |
//! | `requests` | what the coordinator has planned |

pub mod feeder;
pub mod load;
mod loaded_file;
pub mod requests;
