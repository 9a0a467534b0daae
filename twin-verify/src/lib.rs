//! Trusted: accepts or refuses a twin image. `no_std`, no `unsafe`, no opinion on how the image was made.
