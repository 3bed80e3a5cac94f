/* The whole C interface of pyclover: what _native/ declares to cffi is the marked part of each of these headers. */
#pragma once

#include "pyclover/base.h"

#include "pyclover/log.h"

#include "pyclover/model.h"

#include "pyclover/sampler.h"

#include "pyclover/context.h"

#include "pyclover/imatrix.h"

#include "pyclover/spec.h"

#include "pyclover/chat.h"

#include "pyclover/info.h"
