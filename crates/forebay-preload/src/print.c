/*
 * The printing functions of stdio: they take a variable number of arguments, which only C can
 * define. Each passes its arguments on to the counterpart with a va_list in stdio.rs, which counts.
 *
 * The names are not the exported ones, because Rust exports from a shared library only what Rust
 * defines; stdio.rs has the exported names, which jump here.
 */
#include <stdarg.h>
#include <stdio.h>

int forebay_preload_vfprintf(FILE *stream, const char *format, va_list arguments);
int forebay_preload_vfprintf_chk(FILE *stream, int flag, const char *format, va_list arguments);

int forebay_preload_fprintf(FILE *stream, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int count = forebay_preload_vfprintf(stream, format, arguments);
	va_end(arguments);
	return count;
}

int forebay_preload_printf(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int count = forebay_preload_vfprintf(stdout, format, arguments);
	va_end(arguments);
	return count;
}

int forebay_preload_fprintf_chk(FILE *stream, int flag, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int count = forebay_preload_vfprintf_chk(stream, flag, format, arguments);
	va_end(arguments);
	return count;
}

int forebay_preload_printf_chk(int flag, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int count = forebay_preload_vfprintf_chk(stdout, flag, format, arguments);
	va_end(arguments);
	return count;
}
