// A library with RCCL's interface, and HIP's for streams, over shared memory, that is strict about what it's told: for the test
// of the calls. Operations run on a thread of the communicator, so that they're done only after they were enqueued.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { RANKS = 4, SLOT = 1 << 20, NOT_READY = 600, F32 = 7 };
enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

typedef struct { char path[128]; } ncclUniqueId;
typedef struct {
    atomic_int joined, arrived, generation, left;
    atomic_int pids[RANKS];
    char slots[RANKS][SLOT];
} Shared;
typedef struct { atomic_int pending; } Stream;
typedef struct Op {
    int kind, type, root;
    size_t count;
    const void *send;
    void *receive;
    Stream *stream;
    struct Comm *comm;
    struct Op *next;
} Op;
typedef struct Comm {
    Shared *shared;
    int ranks, rank;
    atomic_int async_error, closing;
    pthread_t worker;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    Op *first, *last;
    struct Comm *self;  // to find handles that aren't alive
} Comm;

static atomic_int alive, fail_init, fail_next, ids;
static __thread int depth;
static __thread Op *group;
static __thread char calls[4096];

static void note(const char *call, int type, size_t count) {
    size_t used = strlen(calls);
    if (type < 0) snprintf(calls + used, sizeof calls - used, "%s ", call);
    else snprintf(calls + used, sizeof calls - used, "%s:%d:%zu ", call, type, count);
}

// What tests ask for.
int handles_alive(void) { return atomic_load(&alive); }
void fail_next_init(int code) { atomic_store(&fail_init, code); }
void fail_next_operation(int code) { atomic_store(&fail_next, code); }
const char *calls_of_thread(void) { return calls; }

static size_t size_of(int type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? sizes[type] : 0;
}

// All ranks come, or 0: one of them is gone.
static int barrier(Comm *comm) {
    Shared *shared = comm->shared;
    int generation = atomic_load(&shared->generation);
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == comm->ranks) {
        atomic_store(&shared->arrived, 0);
        atomic_fetch_add(&shared->generation, 1);
        return 1;
    }
    while (atomic_load(&shared->generation) == generation) {
        if (atomic_load(&shared->left) || atomic_load(&comm->closing)) return 0;
        for (int rank = 0; rank < comm->ranks; rank++)
            if (kill(atomic_load(&shared->pids[rank]), 0) != 0 && errno == ESRCH) return 0;
        usleep(100);
    }
    return 1;
}

static int perform(Comm *comm, Op *op) {
    size_t size = size_of(op->type), bytes = op->count * size, parts = comm->ranks;
    size_t in = op->kind == REDUCE_SCATTER ? bytes * parts : bytes;
    char (*slots)[SLOT] = comm->shared->slots;
    usleep(2000);  // later than the call
    memcpy(slots[comm->rank], op->send, in);
    if (!barrier(comm)) return REMOTE_ERROR;
    if (op->kind == ALL_GATHER) {
        for (size_t rank = 0; rank < parts; rank++) memcpy((char *)op->receive + rank * bytes, slots[rank], bytes);
    } else if (op->kind == BROADCAST) {
        memcpy(op->receive, slots[op->root], bytes);
    } else {
        size_t start = op->kind == REDUCE_SCATTER ? comm->rank * op->count : 0;
        for (size_t i = 0; i < op->count; i++) {
            float sum = 0;
            for (size_t rank = 0; rank < parts; rank++) sum += ((float *)slots[rank])[start + i];
            ((float *)op->receive)[i] = sum;
        }
    }
    return barrier(comm) ? SUCCESS : REMOTE_ERROR;
}

static void *work(void *argument) {
    Comm *comm = argument;
    for (;;) {
        pthread_mutex_lock(&comm->lock);
        while (!comm->first && !atomic_load(&comm->closing)) pthread_cond_wait(&comm->filled, &comm->lock);
        Op *op = comm->first;
        if (op) comm->first = op->next;
        pthread_mutex_unlock(&comm->lock);
        if (!op) return NULL;
        int code = atomic_exchange(&fail_next, 0);
        if (code == SUCCESS && atomic_load(&comm->async_error) == SUCCESS) code = perform(comm, op);
        if (code == SUCCESS && atomic_load(&comm->async_error) == SUCCESS) atomic_fetch_sub(&op->stream->pending, 1);
        else if (code != SUCCESS) atomic_store(&comm->async_error, code);  // the stream never gets done
        free(op);
    }
}

int ncclGetVersion(int *version) { *version = 22203; return SUCCESS; }
const char *ncclGetErrorString(int code) {
    switch (code) {
        case SUCCESS: return "no error";
        case SYSTEM_ERROR: return "unhandled system error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        case REMOTE_ERROR: return "remote process exited or there was a network error";
        default: return NULL;
    }
}
int ncclGetUniqueId(ncclUniqueId *id) {
    const char *folder = getenv("TMPDIR");
    memset(id, 0, sizeof *id);
    snprintf(id->path, sizeof id->path, "%s/rccl-%d-%d", folder ? folder : "/tmp", getpid(), atomic_fetch_add(&ids, 1));
    int file = open(id->path, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return SYSTEM_ERROR;
    close(file);
    return SUCCESS;
}
int ncclCommInitRank(Comm **to, int ranks, ncclUniqueId id, int rank) {
    int code = atomic_exchange(&fail_init, 0);
    if (code) unlink(id.path);
    if (code) return code;
    if (ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks || !memchr(id.path, 0, sizeof id.path)) return INVALID_ARGUMENT;
    int file = open(id.path, O_RDWR);
    if (file < 0) return SYSTEM_ERROR;
    Shared *shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared == MAP_FAILED) return SYSTEM_ERROR;
    Comm *comm = calloc(1, sizeof *comm);
    *comm = (Comm){.shared = shared, .ranks = ranks, .rank = rank, .self = comm};
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->filled, NULL);
    atomic_store(&shared->pids[rank], getpid());
    atomic_fetch_add(&shared->joined, 1);
    while (atomic_load(&shared->joined) < ranks) usleep(100);
    unlink(id.path);
    pthread_create(&comm->worker, NULL, work, comm);
    atomic_fetch_add(&alive, 1);
    *to = comm;
    return SUCCESS;
}
static int end(Comm *comm, int gone) {
    if (!comm || comm->self != comm) return INVALID_ARGUMENT;
    if (gone) atomic_store(&comm->shared->left, 1);
    pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->closing, 1);
    pthread_cond_signal(&comm->filled);
    pthread_mutex_unlock(&comm->lock);
    pthread_join(comm->worker, NULL);
    munmap(comm->shared, sizeof(Shared));
    comm->self = NULL;
    atomic_fetch_sub(&alive, 1);
    return SUCCESS;
}
int ncclCommDestroy(Comm *comm) { return end(comm, 0); }
int ncclCommAbort(Comm *comm) { return end(comm, 1); }
int ncclCommGetAsyncError(Comm *comm, int *code) {
    if (!comm || comm->self != comm) return INVALID_ARGUMENT;
    *code = atomic_load(&comm->async_error);
    return SUCCESS;
}
int ncclGroupStart(void) { note("GroupStart", -1, 0); depth++; return SUCCESS; }
int ncclGroupEnd(void) {
    note("GroupEnd", -1, 0);
    if (depth == 0) return INVALID_USAGE;
    if (--depth > 0) return SUCCESS;
    while (group) {
        Op *op = group;
        group = op->next;
        op->next = NULL;
        Comm *comm = op->comm;
        pthread_mutex_lock(&comm->lock);
        if (comm->first) comm->last->next = op;
        else comm->first = op;
        comm->last = op;
        pthread_cond_signal(&comm->filled);
        pthread_mutex_unlock(&comm->lock);
    }
    return SUCCESS;
}
static int enqueue(const char *call, int kind, const void *send, void *receive, size_t count, int type, int operation, int root,
                   Comm *comm, Stream *stream) {
    if (!comm || comm->self != comm || !stream) return INVALID_ARGUMENT;
    note(call, type, count);
    size_t bytes = count * size_of(type) * (kind == REDUCE_SCATTER ? comm->ranks : 1);
    if (bytes == 0 || bytes > SLOT || depth != 1) return INVALID_ARGUMENT;
    if ((kind == ALL_REDUCE || kind == REDUCE_SCATTER) && (type != F32 || operation != 0)) return INVALID_ARGUMENT;
    if (root < 0 || root >= comm->ranks) return INVALID_ARGUMENT;
    Op *op = calloc(1, sizeof *op);
    *op = (Op){.kind = kind, .type = type, .root = root, .count = count, .send = send, .receive = receive, .stream = stream, .comm = comm};
    atomic_fetch_add(&stream->pending, 1);
    Op **at = &group;
    while (*at) at = &(*at)->next;
    *at = op;
    return SUCCESS;
}
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, Comm *comm, Stream *stream) {
    return enqueue("AllReduce", ALL_REDUCE, send, receive, count, type, operation, 0, comm, stream);
}
int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation, Comm *comm, Stream *stream) {
    return enqueue("ReduceScatter", REDUCE_SCATTER, send, receive, count, type, operation, 0, comm, stream);
}
int ncclAllGather(const void *send, void *receive, size_t count, int type, Comm *comm, Stream *stream) {
    return enqueue("AllGather", ALL_GATHER, send, receive, count, type, 0, 0, comm, stream);
}
#ifndef WITHOUT_BROADCAST
int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, Comm *comm, Stream *stream) {
    return enqueue("Broadcast", BROADCAST, send, receive, count, type, 0, root, comm, stream);
}
#endif

int hipSetDevice(int device) { return device == 0 ? 0 : 101; }
int hipStreamCreateWithFlags(Stream **to, unsigned flags) {
    if (flags != 1) return 1;
    *to = calloc(1, sizeof **to);
    atomic_fetch_add(&alive, 1);
    return 0;
}
int hipStreamQuery(Stream *stream) { return atomic_load(&stream->pending) ? NOT_READY : 0; }
int hipStreamDestroy(Stream *stream) {
    free(stream);
    atomic_fetch_sub(&alive, 1);
    return 0;
}
