/* llama.cpp's messages, kept in a bounded ring instead of going to stderr. */
#pragma once

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
enum pc_log_level { PC_LOG_DEBUG = 1, PC_LOG_INFO = 2, PC_LOG_WARN = 3, PC_LOG_ERROR = 4 };

/* Lines below this level are dropped. The default is PC_LOG_INFO. */
int pc_log_set_level(int level);

/* All lines since the last call, oldest first, each "<level digit> <text>\n". The ring holds 2,000 lines of at most
 * 4,096 bytes; *n_lost counts the lines that fell out of it unread. */
int pc_log_drain(pc_buffer * out, uint64_t * n_lost);
/* cffi: end */

#ifdef __cplusplus
}
#endif
