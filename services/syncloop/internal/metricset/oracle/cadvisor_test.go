package oracle

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/cadvisor/lib/container"
	"github.com/google/cadvisor/lib/metrics"
	info "github.com/google/cadvisor/lib/model"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/utils/clock"
)

// oneContainer provides cAdvisor's information about one container that has everything once.
type oneContainer struct{}

func (oneContainer) GetVersionInfo() (*info.VersionInfo, error) { return &info.VersionInfo{}, nil }
func (oneContainer) GetMachineInfo() (*info.MachineInfo, error) { return &info.MachineInfo{}, nil }

func (oneContainer) GetRequestedContainersInfo(string, info.RequestOptions) (map[string]*info.ContainerInfo, error) {
	disk := []info.PerDiskStats{{Device: "/dev/sda", Stats: map[string]uint64{"Read": 1}}}
	stats := &info.ContainerStats{
		Cpu: &info.CpuStats{Usage: info.CpuUsage{Total: 1}}, Memory: &info.MemoryStats{},
		DiskIo: &info.DiskIoStats{
			IoServiceBytes: disk, IoServiced: disk, IoQueued: disk, Sectors: disk, IoServiceTime: disk, IoMerged: disk,
		},
		Network: &info.NetworkStats{Interfaces: []info.InterfaceStats{{Name: "eth0"}}},
		// The device is another one: cAdvisor has the same metrics of disks and of file systems.
		Filesystem: []info.FsStats{{Device: "/dev/sdb"}},
		Processes:  &info.ProcessStats{Ulimits: []info.UlimitSpec{{Name: "max_open_files"}}},
	}
	spec := info.ContainerSpec{HasCpu: true, HasMemory: true, Cpu: info.CpuSpec{Quota: 1}}
	return map[string]*info.ContainerInfo{"/": {Spec: spec, Stats: []*info.ContainerStats{stats}}}, nil
}

// cadvisor is cAdvisor's own collector, with the labels and the metrics that the kubelet chooses.
func cadvisor() prometheus.Gatherer {
	chosen := container.MetricSet{}
	for _, kind := range []container.MetricKind{
		container.CpuUsageMetrics, container.MemoryUsageMetrics, container.DiskIOMetrics, container.DiskUsageMetrics,
		container.NetworkUsageMetrics, container.ProcessMetrics, container.OOMMetrics, container.PressureMetrics,
	} {
		chosen[kind] = struct{}{}
	}
	labels := func(*info.ContainerInfo) map[string]string {
		return map[string]string{"container": "", "id": "", "image": "", "name": "", "namespace": "", "pod": ""}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		metrics.NewPrometheusCollector(oneContainer{}, labels, chosen, clock.RealClock{}, info.RequestOptions{}),
		metrics.NewPrometheusMachineCollector(oneContainer{}, chosen),
	)
	return registry
}

// golden is what /metrics/cadvisor answers in the test of package kubeletapi.
func golden(t *testing.T) prometheus.Gatherer {
	t.Helper()
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		file, err := os.Open("../../api/kubeletapi/testdata/cadvisor.txt")
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // it was only read
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(file)
		return slices.Collect(maps.Values(families)), err
	})
}

// TestNamesOfCAdvisorHaveItsTypesAndLabels compares what both have.
func TestNamesOfCAdvisorHaveItsTypesAndLabels(t *testing.T) {
	theirs, checked := shapes(t, cadvisor()), 0
	for name, ours := range shapes(t, golden(t)) {
		if !strings.HasPrefix(name, "container_") && !strings.HasPrefix(name, "machine_") {
			continue
		}
		checked++
		their, ok := theirs[name]
		if !ok {
			t.Errorf("cAdvisor has no %s", name)
			continue
		}
		slices.Sort(ours.Labels)
		slices.Sort(their.Labels)
		if diff := cmp.Diff(their, ours); diff != "" {
			t.Errorf("%s differs from cAdvisor's (-cAdvisor +ours):\n%s", name, diff)
		}
	}
	if checked < 65 {
		t.Errorf("only %d metrics were compared", checked)
	}
}
