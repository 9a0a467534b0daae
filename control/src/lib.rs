//! What twinctl, tandemd and twind say to each other: requests and what is told, by sockets and by xenstore.

pub mod store;
