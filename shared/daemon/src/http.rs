//! The interface of a daemon for programs, over HTTP.
//!
//! | module | content |
//! |---|---|
//! | [`answers`] | the form of requests and errors |
//! | `listening` | a Unix socket for everything, a TCP port for programs that only read |
//! | `accepting` | any other service over HTTP, on a bounded number of connections |

mod accepting;
pub mod answers;
mod listening;

pub use accepting::serve_all;
pub use listening::{HttpPort, Rest, serve};
