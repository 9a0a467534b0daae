/* What the parts of this test share. */
#ifndef TWINS_H
#define TWINS_H
#include "image.h"

/* A request to load the functions of code.S, and loading them; the twin's number. */
struct twin_load good_load(void);
u32 load(void);
/* One whose domain describes its kernel: the hypervisor serves it. */
u32 load_with_kernel(void);
s64 unload(u32 twin);
/* Functions of the domain that a twin calls, and those that the hypervisor serves. */
void twins_import(void);
/* A twin on one CPU, page tables that change on another. */
void twins_beside(void);
/* What vCPU 1 does when it is brought up again after that, and whether it has come to the end of it. */
extern void (*volatile job)(void);
extern volatile bool has_stopped;
/* A twin is unloaded while it is called on the other CPU. */
void twins_unloaded_beside(void);
/* The same while it is loaded. */
void twins_unloaded_halfway(void);
/* An image is slow to be read. */
void twins_loaded_slowly(void);
/* A twin of `spin_code`. */
u32 load_endless(void);
/* Twins where there is little memory. */
void twins_short_of_memory(void);
#endif
