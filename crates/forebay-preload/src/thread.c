/*
 * How deep this thread is inside the library: see inside.rs. In the thread's static block, because
 * Rust can only ask for a variable that the dynamic linker may have to allocate.
 */
static __thread int depth __attribute__((tls_model("initial-exec")));

int *forebay_preload_depth(void)
{
	return &depth;
}
