/* A Vulkan 1.3 driver with one device and not a single feature: no 8-bit or 16-bit storage, no small integers.
 * With CRASH defined it ends the process when it is asked for its devices. No Vulkan header is needed: what little of the
 * interface is used is written out. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);

enum { MAGIC = 0x01CDC0DE, FEATURE_NOT_PRESENT = -8, FEATURES = 55 * 4, MEMORY = 520 };

/* The loader keeps its own pointer at the beginning of a handle. */
static uintptr_t instance = MAGIC, device = MAGIC;

static int nothing(void) { return 0; }

static int create_instance(const void *info, const void *allocator, void **out)
{
    *out = &instance;
    return 0;
}

static int list_devices(void *of, uint32_t *count, void **out)
{
#ifdef CRASH
    abort();
#endif
    if (out != NULL)
        out[0] = &device;
    *count = 1;
    return 0;
}

static int list_instance_extensions(const char *layer, uint32_t *count, void *out)
{
    *count = 0;
    return 0;
}

static int list_device_extensions(void *of, const char *layer, uint32_t *count, void *out)
{
    *count = 0;
    return 0;
}

static void get_properties(void *of, uint32_t *out)
{
    out[0] = (1u << 22) | (3u << 12);
    out[1] = out[2] = out[3] = 1;
    out[4] = 4;
    strcpy((char *)(out + 5), "a device without features");
}

static void get_features(void *of, void *out) { memset(out, 0, FEATURES); }

static void get_queues(void *of, uint32_t *count, uint32_t *out)
{
    static const uint32_t all[6] = {7, 1, 0, 1, 1, 1};
    if (out != NULL)
        memcpy(out, all, sizeof all);
    *count = 1;
}

static void get_memory(void *of, void *out) { memset(out, 0, MEMORY); }

/* The newer calls wrap the older structures: a type and a pointer come first. */
static void get_properties2(void *of, char *out) { get_properties(of, (uint32_t *)(out + 16)); }
static void get_features2(void *of, char *out) { get_features(of, out + 16); }
static void get_memory2(void *of, char *out) { get_memory(of, out + 16); }
static void get_queues2(void *of, uint32_t *count, char *out)
{
    get_queues(of, count, out == NULL ? NULL : (uint32_t *)(out + 16));
}

static int create_device(void *of, const void *info, const void *allocator, void **out) { return FEATURE_NOT_PRESENT; }

int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version)
{
    if (*version > 5)
        *version = 5;
    return 0;
}

Function vk_icdGetInstanceProcAddr(void *of, const char *name)
{
    static const struct {
        const char *name;
        Function function;
    } all[] = {
        {"vkCreateInstance", (Function)create_instance},
        {"vkEnumeratePhysicalDevices", (Function)list_devices},
        {"vkEnumerateInstanceExtensionProperties", (Function)list_instance_extensions},
        {"vkEnumerateDeviceExtensionProperties", (Function)list_device_extensions},
        {"vkGetPhysicalDeviceProperties", (Function)get_properties},
        {"vkGetPhysicalDeviceProperties2", (Function)get_properties2},
        {"vkGetPhysicalDeviceFeatures", (Function)get_features},
        {"vkGetPhysicalDeviceFeatures2", (Function)get_features2},
        {"vkGetPhysicalDeviceQueueFamilyProperties", (Function)get_queues},
        {"vkGetPhysicalDeviceQueueFamilyProperties2", (Function)get_queues2},
        {"vkGetPhysicalDeviceMemoryProperties", (Function)get_memory},
        {"vkGetPhysicalDeviceMemoryProperties2", (Function)get_memory2},
        {"vkCreateDevice", (Function)create_device},
        {"vkDestroyInstance", (Function)nothing},
        {"vkGetDeviceProcAddr", (Function)nothing},
        {"vkGetPhysicalDeviceFormatProperties", (Function)nothing},
        {"vkGetPhysicalDeviceImageFormatProperties", (Function)nothing},
        {"vkGetPhysicalDeviceSparseImageFormatProperties", (Function)nothing},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].function;
    return NULL;
}
