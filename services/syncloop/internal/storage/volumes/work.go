package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// The reasons of the kubelet's events for a volume, and for a block device, that cannot be set up.
const (
	eventFailedMount = "FailedMount"
	eventFailedMap   = "FailedMapVolume"
)

// volumesDirMode is the mode of the directories of volumes.
const volumesDirMode = 0o750

// work is an operation with its inputs.
type work struct {
	step
	plugin Plugin
	spec   spec
	// again is true for the update of a volume that is set up.
	again bool
	// waited is how long the volume has been wanted.
	waited time.Duration
}

// do executes an operation and records its result. It is the only one for its volume, and may hang.
func (m *Manager) do(ctx context.Context, w work) {
	begun := m.cfg.Clock.Now()
	about := telemetry.Subject{UID: string(w.key.pod)}
	if p := w.spec.pod; p != nil {
		about.Namespace, about.Pod = p.Namespace, p.Name
	}
	name := "volume.setup"
	if w.op == tearingDown {
		name = "volume.teardown"
	}
	tracer := m.cfg.Tracer
	if w.again {
		tracer = telemetry.Off() // updates are frequent and mostly change nothing
	}
	ctx, span := telemetry.Start(trace.ContextWithSpanContext(ctx, w.spec.startedBy), tracer, name, about)
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrVolume.String(w.key.name),
			telemetry.AttrVolumePlugin.String(readableName(w.key.plugin)))
	}
	plugin, device, migrated := m.measuredKind(w.key)
	err := m.call(context.WithValue(ctx, turnKey{}, turnOf{m, w.key}), w)
	if w.op == settingUp {
		plugin, device, migrated = m.measuredKind(w.key) // that of a claim is known after it
	}
	telemetry.End(span, err)
	m.cfg.Metrics.Done(plugin, string(operationOf(w.op, device)), migrated, m.cfg.Clock.Since(begun), err)
	if w.op == settingUp && !w.again && !device && err == nil {
		m.cfg.Metrics.mounted(plugin, w.waited+m.cfg.Clock.Since(begun))
	}
	if err != nil && ctx.Err() == nil {
		m.report(ctx, w, err)
	}
	m.ended(w.key, err)
}

// operationOf returns the kubelet's name of an operation.
func operationOf(op operation, device bool) measured {
	switch {
	case op == settingUp && device:
		return measuredMap
	case op == settingUp:
		return measuredMount
	case device:
		return measuredUnmap
	}
	return measuredUnmount
}

// call calls the plugin.
func (m *Manager) call(ctx context.Context, w work) error {
	dir := m.dir(w.key)
	if w.op == tearingDown {
		answered := Asking(ctx, "unmount of its parts")
		err := m.subPaths.Clean(m.podDir(w.key.pod), m.partsOf(w.key))
		answered()
		if err != nil {
			return err
		}
		return w.plugin.TearDown(ctx, dir)
	}
	r := Request{Pod: w.spec.pod, Volume: volumeOf(w.spec.pod, w.key.name), Dir: dir}
	if sc := w.spec.pod.Spec.SecurityContext; sc != nil {
		r.FSGroup, r.FSGroupChangePolicy = sc.FSGroup, sc.FSGroupChangePolicy
	}
	if m.hasDir(w.plugin) {
		if err := os.MkdirAll(filepath.Dir(dir), volumesDirMode); err != nil {
			return err
		}
	}
	return w.plugin.SetUp(ctx, r)
}

// hasDir reports whether the manager creates the directory of a plugin's volumes.
func (m *Manager) hasDir(plugin Plugin) bool {
	_, inPlace := plugin.(InPlace)
	_, elsewhere := plugin.(Elsewhere)
	return !inPlace && !elsewhere
}

// report reports a failure: to the user of the pod as the kubelet does, and in the log.
func (m *Manager) report(ctx context.Context, w work, err error) {
	attrs := []any{telemetry.KeyPodUID, string(w.key.pod), telemetry.KeyVolume, w.key.name, telemetry.KeyError, err}
	if p := w.spec.pod; p != nil {
		attrs = append(attrs, telemetry.KeyPod, p.Namespace+"/"+p.Name)
	}
	if w.op == tearingDown {
		m.cfg.Logger.WarnContext(ctx, "a volume cannot be removed; it is tried again", attrs...)
		return
	}
	m.warn(ctx, w, err)
	level := slog.LevelDebug // the pod's worker reports it too
	if w.again {
		level = slog.LevelWarn
	}
	m.cfg.Logger.Log(ctx, level, "a volume cannot be set up; it is tried again", attrs...)
}

// routine is an error of a volume that most pods wait for, for a moment.
type routine interface {
	error
	// IsRoutine reports whether it is not worth an event yet.
	IsRoutine() bool
}

// warn records the event of a failure. As in a kubelet, a volume that the cluster is attaching has one only if the pod
// has waited for it for as long as Wait waits.
func (m *Manager) warn(ctx context.Context, w work, err error) {
	if one := routine(nil); errors.As(err, &one) && one.IsRoutine() && w.waited < waitTimeout {
		return
	}
	reason, block := eventFailedMount, isDevice(w.spec.pod, w.key.name)
	if block {
		reason = eventFailedMap
	}
	m.cfg.Events.Warning(ctx, w.spec.pod, "", reason, setUpFailed(w.key.name, block, err))
}

// setUpFailed returns the kubelet's message for a volume, or a block device, that cannot be set up.
func setUpFailed(name string, block bool, err error) string {
	if block {
		return fmt.Sprintf("MapVolume.SetUpDevice failed for volume %q : %v", name, err)
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", name, err)
}

// use is how containers use a volume.
type use struct{ mounts, devices bool }

// Users reports whether a container of a pod has a volume in volumeMounts, and whether one has it in volumeDevices.
func Users(pod *v1.Pod, volume string) (mounts, devices bool) {
	u := uses(pod)[volume]
	return u.mounts, u.devices
}

// isDevice reports whether the containers of a pod use a volume only as a block device.
func isDevice(pod *v1.Pod, volume string) bool {
	mounts, devices := Users(pod, volume)
	return devices && !mounts
}

// uses returns how the containers of a pod use its volumes, by the names of these.
func uses(pod *v1.Pod) map[string]use {
	names := map[string]use{}
	note := func(c *v1.Container) {
		for _, mount := range c.VolumeMounts {
			names[mount.Name] = use{mounts: true, devices: names[mount.Name].devices}
		}
		for _, device := range c.VolumeDevices {
			names[device.Name] = use{mounts: names[device.Name].mounts, devices: true}
		}
	}
	for i := range pod.Spec.InitContainers {
		note(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		note(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.EphemeralContainers {
		c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		note(&c)
	}
	return names
}

// mounted returns the volumes of a pod that a container mounts, or has as a device, in the order of the spec. As in the
// kubelet, others are never set up.
func mounted(pod *v1.Pod) []*v1.Volume {
	used := uses(pod)
	var volumes []*v1.Volume
	for i := range pod.Spec.Volumes {
		if _, ok := used[pod.Spec.Volumes[i].Name]; ok {
			volumes = append(volumes, &pod.Spec.Volumes[i])
		}
	}
	return volumes
}

// volumeOf returns a volume of a pod by name; nil if there is none. The pod may be nil.
func volumeOf(pod *v1.Pod, name string) *v1.Volume {
	if pod == nil {
		return nil
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}
