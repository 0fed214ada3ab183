//! Pages that are fetched before anybody reads them.
//!
//! | file | what it does |
//! | --- | --- |
//! | `feeder` | takes the pages of files in order, and puts each on its way when it may go |
//! | `load` | loads: files that a user has requested |
//! | `orders` | what the coordinator has planned |

pub mod feeder;
pub mod load;
pub mod requests;
