//! The twin contract shared by rewriter, verifier and runtime: image format, address map, value kinds, gates. No logic
//! beyond reading and writing the format.
//!
//! Read `docs/sandbox.md` for the rules that an image has to follow; this crate only names the things in those rules.
//! - [`layout`]: what lies where around the code at run time, and which words the code may name.
//! - [`kind`]: what can be known about a register, and the frame description; both are declared at labels.
//! - [`image`]: the file that the rewriter writes and the verifier reads.
//! - [`op`]: the hypercall by which a domain loads its twins.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod image;
pub mod kind;
pub mod layout;
pub mod op;

pub use image::{Image, ImageBuilder};
