/*
 * What our plugins use of QEMU's plugin interface, version 1. It is declared here since Debian packages no header of it.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct tb;
struct insn;
struct address;

/* Arguments of callbacks and of counting in line. */
enum { NO_REGISTERS = 0, ADD_U64 = 0, READS = 1, WRITES = 2 };

void qemu_plugin_register_vcpu_init_cb(plugin_id id, void (*cb)(plugin_id, unsigned));
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*cb)(plugin_id, struct tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct tb *tb, void (*cb)(unsigned, void *), int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_inline(struct insn *in, int op, void *counter, uint64_t add);
void qemu_plugin_register_vcpu_insn_exec_cb(struct insn *in, void (*cb)(unsigned, void *), int flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(struct insn *in, void (*cb)(unsigned, uint32_t, uint64_t, void *), int flags,
				      int accesses, void *data);
void qemu_plugin_register_atexit_cb(plugin_id id, void (*cb)(plugin_id, void *), void *data);
void qemu_plugin_reset(plugin_id id, void (*cb)(plugin_id));
size_t qemu_plugin_tb_n_insns(const struct tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct tb *tb);
struct insn *qemu_plugin_tb_get_insn(const struct tb *tb, size_t n);
const void *qemu_plugin_insn_data(const struct insn *in);
size_t qemu_plugin_insn_size(const struct insn *in);
uint64_t qemu_plugin_insn_vaddr(const struct insn *in);
void *qemu_plugin_insn_haddr(const struct insn *in);
unsigned qemu_plugin_mem_size_shift(uint32_t info);
struct address *qemu_plugin_get_hwaddr(uint32_t info, uint64_t vaddr);
int qemu_plugin_hwaddr_is_io(const struct address *address);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct address *address);
const char *qemu_plugin_hwaddr_device_name(const struct address *address);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
