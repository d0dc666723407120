package cri_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/test/fakecri"
)

// operationOf has the kubelet's operation name of each CRI call.
var operationOf = map[string]string{
	"Version":                   "version",
	"Status":                    "status",
	"RuntimeConfig":             "runtime_config",
	"UpdateRuntimeConfig":       "update_runtime_config",
	"RunPodSandbox":             "run_podsandbox",
	"StopPodSandbox":            "stop_podsandbox",
	"RemovePodSandbox":          "remove_podsandbox",
	"PodSandboxStatus":          "podsandbox_status",
	"ListPodSandbox":            "list_podsandbox",
	"PortForward":               "port_forward",
	"UpdatePodSandboxResources": "update_podsandbox_resources",
	"CheckpointPod":             "checkpoint_pod",
	"RestorePod":                "restore_pod",
	"CreateContainer":           "create_container",
	"StartContainer":            "start_container",
	"StopContainer":             "stop_container",
	"RemoveContainer":           "remove_container",
	"ListContainers":            "list_containers",
	"ContainerStatus":           "container_status",
	"UpdateContainerResources":  "update_container",
	"ExecSync":                  "exec_sync",
	"Exec":                      "exec",
	"Attach":                    "attach",
	"ReopenContainerLog":        "reopen_container_log",
	"CheckpointContainer":       "checkpoint_container",
	"GetContainerEvents":        "get_container_events",
	"ContainerStats":            "container_stats",
	"ListContainerStats":        "list_container_stats",
	"PodSandboxStats":           "podsandbox_stats",
	"ListPodSandboxStats":       "list_podsandbox_stats",
	"ListMetricDescriptors":     "list_metric_descriptors",
	"ListPodSandboxMetrics":     "list_podsandbox_metrics",
	"ListImages":                "list_images",
	"ImageStatus":               "image_status",
	"PullImage":                 "pull_image",
	"RemoveImage":               "remove_image",
	"ImageFsInfo":               "image_fs_info",
}

// TestEveryCallIsCounted makes each call of the CRI once, which fails, so that an uncounted call is also found when the
// interfaces grow.
func TestEveryCallIsCounted(t *testing.T) {
	fake, registry := fakecri.New(t), prometheus.NewRegistry()
	client := newClient(t, cri.Config{Endpoint: fake.Endpoint(), Registerer: registry})
	runtime, err := client.Runtime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	images, err := client.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(cri.Quiet(t.Context()))
	cancel()
	for kind, value := range map[reflect.Type]reflect.Value{
		reflect.TypeFor[internalapi.RuntimeService]():      reflect.ValueOf(runtime),
		reflect.TypeFor[internalapi.ImageManagerService](): reflect.ValueOf(images),
	} {
		for i := range kind.NumMethod() {
			method := kind.Method(i)
			if method.Name == "Close" {
				continue
			}
			args := []reflect.Value{reflect.ValueOf(ended)}
			for n := 1; n < method.Type.NumIn(); n++ {
				args = append(args, someOf(method.Type.In(n)))
			}
			value.MethodByName(method.Name).Call(args)
			for _, metric := range []string{"total", "errors_total", "duration_seconds"} {
				metricstest.Want(t, registry, 1, "kubelet_runtime_operations_"+metric, "operation_type", operationOf[method.Name])
			}
		}
	}
}

// someOf returns an empty value of a type; a pointer is not nil.
func someOf(kind reflect.Type) reflect.Value {
	if kind.Kind() == reflect.Pointer {
		return reflect.New(kind.Elem())
	}
	return reflect.Zero(kind)
}

func TestCallsThatWorkAreNoErrors(t *testing.T) {
	fake, registry := fakecri.New(t), prometheus.NewRegistry()
	client := newClient(t, cri.Config{Endpoint: fake.Endpoint(), Registerer: registry})
	runtime, err := client.Runtime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.Version(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.ContainerStatus(cri.Quiet(t.Context()), "none", false); err == nil {
		t.Fatal("there is a container that is none")
	}
	metricstest.Want(t, registry, 1, "kubelet_runtime_operations_total", "operation_type", "version")
	metricstest.Want(t, registry, 0, "kubelet_runtime_operations_errors_total", "operation_type", "version")
	metricstest.Want(t, registry, 1, "kubelet_runtime_operations_errors_total", "operation_type", "container_status")
}
