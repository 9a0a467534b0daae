/*
 * A test kernel: a tiny 64-bit PV guest that tries one behaviour of the hypervisor and says what it found.
 *
 * A test defines `test_name` and test_main(). It calls check() for what must hold; skip() if the machine lacks what it
 * takes; error() if the test itself is broken. Returning from test_main() is a success unless a check failed.
 * It runs as domain 0, or beside it if xl makes it, on stock Xen and on Tandem alike.
 */
#ifndef GUEST_H
#define GUEST_H
#include "abi.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;
typedef int64_t s64;

#define PAGE 4096ul
/* Variables that all vCPUs of a kernel see, also where each has its own of all others (chaos/vcpus.c). */
#define SHARED __attribute__((section(".shared,\"aw\",@nobits#")))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

extern const char test_name[];
void test_main(void);

/* Verdicts. A failed check is printed and counted; the test goes on. */
void printk(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool check_that(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define check(holds, ...) check_that((holds), __VA_ARGS__)
/* The result of a hypercall; says what it was instead. */
#define check_result(call, expected, what)                                                                             \
	({                                                                                                             \
		s64 result_ = (call);                                                                                  \
		check(result_ == (expected), "%s: result %ld instead of %ld", what, result_, (s64)(expected));         \
	})
/* Refused, with whatever error: which one depends on the order in which things are looked at. */
#define check_refused(call, what)                                                                                      \
	({                                                                                                             \
		s64 result_ = (call);                                                                                  \
		check(result_ < 0, "%s: result %ld", what, result_);                                                   \
	})
/* Checks that failed since this was asked last; who asks has to see to it that they count. */
u32 take_failures(void);
void skip(const char *why) __attribute__((noreturn));
void error(const char *why) __attribute__((noreturn));
/* Ends a test that cannot go on behind a check that failed. */
void fail(void) __attribute__((noreturn));

/* Tandem's debug key `f` recounts all frames, and fails if one is lost or wrong. Stock Xen has no such key, and ignores it. */
void audit(void);

/* Error numbers. */
enum { EPERM = 1, ENOENT = 2, ESRCH = 3, EIO = 5, E2BIG = 7, EAGAIN = 11, ENOMEM = 12, EACCES = 13, EFAULT = 14, EBUSY = 16, EEXIST = 17, ENODEV = 19, EINVAL = 22, ENOSPC = 28, EDOM = 33, ENOSYS = 38, EOPNOTSUPP = 95 };

/* Hypercalls; errors are negative. */
static inline s64 hypercall(u64 number, u64 a, u64 b, u64 c, u64 d, u64 e)
{
	register u64 r10 asm("r10") = d, r8 asm("r8") = e;
	s64 result;
	asm volatile("syscall"
		     : "=a"(result), "+D"(a), "+S"(b), "+d"(c), "+r"(r10), "+r"(r8)
		     : "0"(number)
		     : "rcx", "r11", "memory");
	return result;
}
#define HC0(name) hypercall(HC_##name, 0, 0, 0, 0, 0)
#define HC1(name, a) hypercall(HC_##name, (u64)(a), 0, 0, 0, 0)
#define HC2(name, a, b) hypercall(HC_##name, (u64)(a), (u64)(b), 0, 0, 0)
#define HC3(name, a, b, c) hypercall(HC_##name, (u64)(a), (u64)(b), (u64)(c), 0, 0)
#define HC4(name, a, b, c, d) hypercall(HC_##name, (u64)(a), (u64)(b), (u64)(c), (u64)(d), 0)

/* start_info, as the header has it. */
struct start_info {
	char magic[32];
	u64 nr_pages, shared_info;
	u32 flags, pad0;
	u64 store_mfn;
	u32 store_evtchn, pad1;
	u64 console_mfn;
	u32 console_evtchn, pad2;
	u64 pt_base, nr_pt_frames, mfn_list, mod_start, mod_len;
	char cmd_line[1024];
	u64 first_p2m_pfn, nr_p2m_frames;
};
extern struct start_info *start_info;
/* Else xl made it. */
static inline bool is_initial_domain(void)
{
	return start_info->flags & 2;
}

/* Else it is stock Xen, or another one. */
bool is_tandem(void);
/* The machine is QEMU's version 10, which differs from a real one, and from 7.2, in places. */
bool is_qemu_10(void);

/* shared_info, the parts in use. */
struct vcpu_info {
	u8 upcall_pending, upcall_mask, pad[6];
	u64 pending_sel, cr2, pad1;
	struct {
		u32 version, pad;
		u64 tsc_timestamp, system_time;
		u32 mul;
		int8_t shift;
		u8 flags, pad1[2];
	} time;
};
struct shared_info {
	struct vcpu_info vcpu[32];
	u64 pending[64], mask[64];
	u32 wc_version, wc_sec, wc_nsec, wc_sec_hi;
};
/* Maps it on first use. */
volatile struct shared_info *shared_info(void);

/* Entries into the guest: traps by vector, ENTRY_EVENT, ENTRY_SYSCALL, ENTRY_FAILSAFE. */
struct frame {
	u64 r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax;
	u64 number, error, rip, cs, rflags, rsp, ss;
};
typedef void handler(struct frame *frame);
extern handler *handlers[ENTRY_COUNT];
/* What happens at an entry that has no handler and does not belong to a PROBE; if NULL, that is the end. */
extern handler *on_unexpected;
/* Goes to a frame, and back here when resume() is called. `iret_flags` goes into the frame of the iret hypercall. */
void enter(const struct frame *to);
void resume(void) __attribute__((noreturn));
extern u64 iret_flags;
/* Registers at the kernel's first instruction. */
enum { AT_RAX, AT_RCX, AT_RDX, AT_RBX, AT_RSP, AT_RBP, AT_RSI, AT_RDI, AT_R8, AT_R15 = 15, AT_CS, AT_SS, AT_DS, AT_ES, AT_FS,
	AT_GS, AT_RFLAGS, AT_COUNT };
extern u64 entry_regs[AT_COUNT];

struct trap_info {
	u8 vector, flags;
	u16 cs;
	u64 address;
};
extern void entry_128(void), entry_129(void), entry_130(void), entry_256(void), entry_257(void), entry_258(void);
s64 set_trap(u8 vector, u8 flags, void (*address)(void));
s64 set_callback(u16 type, u16 flags, void (*address)(void));
/* Those of all exceptions, and a row of zeroes. */
enum { NR_EXCEPTIONS = 32 };
extern const struct trap_info exception_traps[NR_EXCEPTIONS + 1];

/*
 * PROBE(code, :outputs :inputs :clobbers): executes code that may trap; the clobbers must have "r11" and "memory".
 * Gives the trap's vector, or NO_TRAP; `probe` has the details. Execution continues behind the code.
 */
#define NO_TRAP (~0ul)
struct probe {
	u64 resume_at, vector, nr_traps;
	struct frame frame;
};
extern volatile struct probe probe;
#define PROBE(code, ...)                                                                                               \
	({                                                                                                             \
		probe.vector = NO_TRAP;                                                                                \
		probe.nr_traps = 0;                                                                                    \
		asm volatile("lea 771f(%%rip), %%r11\n\tmov %%r11, probe(%%rip)\n\t" code                              \
			     "\n771:\tmovq $0, probe(%%rip)" __VA_ARGS__);                                             \
		probe.vector;                                                                                          \
	})

/* Memory. */
extern u8 pages[64][PAGE];
static inline u64 pfn_of(const void *va)
{
	return ((u64)va - VIRT_BASE) / PAGE;
}
static inline u64 mfn_of_pfn(u64 pfn)
{
	return ((volatile u64 *)start_info->mfn_list)[pfn];
}
static inline u64 mfn_of(const void *va)
{
	return mfn_of_pfn(pfn_of(va));
}
static inline u64 maddr_of(const void *va)
{
	return mfn_of(va) * PAGE + (u64)va % PAGE;
}
static inline void *va_of_mfn(u64 mfn)
{
	return (void *)(VIRT_BASE + ((volatile u64 *)M2P_BASE)[mfn] * PAGE);
}
void *memset(void *to, int byte, size_t len);
void *memcpy(void *to, const void *from, size_t len);
int memcmp(const void *a, const void *b, size_t len);

/* Page tables. */
enum { P = 1, RW = 2, US = 4, PWT = 8, PCD = 16, A = 32, D = 64, PSE = 128, G = 256 };
#define NX (1ul << 63)
#define ADDR_MASK 0x000ffffffffff000ul
/* The entry of `level` that maps `va` in the tables that the domain started with. */
volatile u64 *entry_for(const void *va, int level);
static inline u64 pte(u64 mfn, u64 flags)
{
	return mfn * PAGE | flags;
}
s64 update_va(const void *va, u64 entry, u64 flags);
s64 mmu_update(u64 ptr, u64 val);
s64 mmuext(u32 cmd, u64 arg1, u64 arg2);
enum { PIN_L1, PIN_L2, PIN_L3, PIN_L4, UNPIN, NEW_BASEPTR, FLUSH_LOCAL, INVLPG_LOCAL, SET_LDT = 13, NEW_USER_BASEPTR = 15,
	CLEAR_PAGE, COPY_PAGE };
/* Maps a page read-only, or writable again. */
void make_read_only(const void *page);
void make_writable(const void *page);
#define DOMID_SELF 0x7ff0ul

u64 random_u64(u64 *seed);
/* System time in ns. */
u64 now_ns(void);
#endif
