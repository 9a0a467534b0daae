//! ELF notes of a PV kernel (public/elfnote.h).
