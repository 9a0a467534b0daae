//! Untrusted host tool: driver text in, sandboxed image and manifest out.
