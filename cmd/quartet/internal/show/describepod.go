package show

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/podset"
)

// print prints the description on a page.
func (d description) print(p *page, now time.Time) {
	d.printPod(p, now)
	d.printContainers(p, now)
	d.printConditions(p, now)
	d.printVolumes(p, now)
	d.printWorker(p, now)
	d.printPhases(p, now)
	d.printEvents(p, now)
}

// formatTime formats a time as kubectl does.
func formatTime(t metav1.Time) string {
	if t.IsZero() {
		return unknown
	}
	return t.Local().Format(time.RFC1123Z)
}

func (d description) printPod(p *page, now time.Time) {
	pod, status := d.pod, &d.pod.Status
	p.field(0, "Name", pod.Name)
	p.field(0, "Namespace", pod.Namespace)
	p.field(0, "UID", string(pod.UID))
	p.field(0, "Node", strings.TrimSuffix(pod.Spec.NodeName+"/"+status.HostIP, "/"))
	p.field(0, "Source", d.from())
	if pod.Spec.Priority != nil {
		p.field(0, "Priority", fmt.Sprint(*pod.Spec.Priority))
	}
	p.fieldIf(0, "Priority Class", pod.Spec.PriorityClassName)
	if pod.Spec.RuntimeClassName != nil {
		p.field(0, "Runtime Class", *pod.Spec.RuntimeClassName)
	}
	started := noValue
	if status.StartTime != nil {
		started = formatTime(*status.StartTime)
	}
	p.field(0, "Start Time", started)
	p.field(0, "Labels", pairs(pod.Labels, "=")...)
	p.field(0, "Annotations", pairs(podset.StripOwnAnnotations(pod.Annotations), ": ")...)
	p.field(0, "Status", d.status())
	if c := unknownState(pod); c != nil {
		p.field(
			0,
			"Runtime State",
			fmt.Sprintf(
				"unknown since %s (%s): %s",
				formatTime(c.LastTransitionTime),
				age(c.LastTransitionTime.Time, now),
				oneLine(c.Message),
			),
			"The state of its containers is the last known one. The node keeps retrying, and continues as soon as there is an answer.",
			"If this persists, check the runtime's log for the pod's IDs; a restart of the runtime ends no container.",
		)
	}
	p.fieldIf(0, "Reason", status.Reason)
	p.fieldIf(0, "Message", oneLine(status.Message))
	if pod.DeletionTimestamp != nil {
		p.field(0, "Deleted", formatTime(*pod.DeletionTimestamp))
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		p.field(0, "Grace Period", fmt.Sprintf("%ds", *grace))
	}
	p.field(0, "Restart Policy", orNone(string(pod.Spec.RestartPolicy)))
	p.field(0, "QoS Class", orNone(string(status.QOSClass)))
	p.field(0, "Host Access", hostAccess(&pod.Spec)...)
	p.field(0, "IPs", ipsOf(status)...)
	if len(pod.Spec.NodeSelector) > 0 {
		p.field(0, "Node-Selectors", pairs(pod.Spec.NodeSelector, "=")...)
	}
}

// from returns the origin of the pod.
func (d description) from() string {
	switch {
	case d.source == "":
		return "none: only the runtime knows it"
	case d.target == "":
		return d.source
	default:
		return d.source + ", " + d.target
	}
}

// status returns the pod's phase, with a remark while it is terminating.
func (d description) status() string {
	phase := orNone(string(d.pod.Status.Phase))
	stopping := d.worker == enginev1.WorkerState_WORKER_STATE_TERMINATING || d.pod.DeletionTimestamp != nil
	if stopping && d.pod.Status.Phase != v1.PodSucceeded && d.pod.Status.Phase != v1.PodFailed {
		return "Terminating (" + phase + ")"
	}
	return phase
}

// hostAccess lists the namespaces of the machine that a pod uses.
func hostAccess(spec *v1.PodSpec) []string {
	var all []string
	if spec.HostNetwork {
		all = append(all, "network")
	}
	if spec.HostPID {
		all = append(all, "PID")
	}
	if spec.HostIPC {
		all = append(all, "IPC")
	}
	if len(all) == 0 {
		return nil
	}
	return []string{strings.Join(all, ", ")}
}

func ipsOf(status *v1.PodStatus) []string {
	var ips []string
	for _, ip := range status.PodIPs {
		ips = append(ips, ip.IP)
	}
	if len(ips) == 0 && status.PodIP != "" {
		ips = []string{status.PodIP}
	}
	return ips
}

func (d description) printConditions(p *page, now time.Time) {
	var rows [][]string
	for _, c := range d.pod.Status.Conditions {
		rows = append(
			rows,
			[]string{
				string(c.Type),
				string(c.Status),
				age(c.LastTransitionTime.Time, now),
				orNone(c.Reason),
				oneLine(c.Message),
			},
		)
	}
	p.table("Conditions", []string{"Type", "Status", "Since", "Reason", "Message"}, rows)
}

func (d description) printWorker(p *page, now time.Time) {
	w := d.work
	if w == nil {
		p.empty("Worker")
		return
	}
	p.section(0, "Worker")
	state := workerName(w.GetState())
	if w.GetStateSince() != nil {
		state += " for " + age(w.GetStateSince().AsTime(), now)
	}
	p.field(1, "State", state)
	p.field(1, "Busy", yesNo(w.GetBusy()))
	p.field(1, "Pending", yesNo(w.GetPending()))
	p.field(1, "Next", until(w.GetNextSyncAt(), now))
	if w.GetTerminateBy() != nil {
		p.field(1, "Stops", until(w.GetTerminateBy(), now))
	}
	p.field(1, "Waits For", orNone(oneLine(w.GetWaitsFor())))
	p.field(1, "Last Error", orNone(oneLine(w.GetLastError())))
}

func (d description) printPhases(p *page, now time.Time) {
	var rows [][]string
	for _, phase := range d.work.GetPhases() {
		rows = append(rows, []string{
			phase.GetPhase(),
			orNone(phase.GetContainer()),
			age(phase.GetEndedAt().AsTime(), now),
			phase.GetTook().AsDuration().Round(10 * time.Microsecond).String(),
		})
	}
	p.table("Last Start", []string{"Phase", "Container", "Age", "Took"}, rows)
}

func (d description) printEvents(p *page, now time.Time) {
	var rows [][]string
	for _, e := range d.events {
		rows = append(rows, []string{e.Type, e.Reason, e.seen(now), orNone(e.container()), oneLine(e.Message)})
	}
	p.table("Events", []string{"Type", "Reason", "Age", "Container", "Message"}, rows)
}
