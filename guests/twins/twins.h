/* What the parts of this test share. */
#ifndef TWINS_H
#define TWINS_H
#include "image.h"

/* Loads the functions of code.S; the twin's number. */
u32 load(void);
s64 unload(u32 twin);
/* A twin on one CPU, page tables that change on another. */
void twins_beside(void);
#endif
