package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

func (d description) printContainers(p *page, now time.Time) {
	spec, status := &d.pod.Spec, &d.pod.Status
	sidecars := sidecarNames(d.pod)
	group := func(name string, containers []v1.Container, statuses []v1.ContainerStatus) {
		if len(containers) == 0 {
			return
		}
		p.section(0, name)
		for i := range containers {
			c := &containers[i]
			label := c.Name
			if name != "Containers" && sidecars[c.Name] {
				label += " (sidecar)"
			}
			p.section(1, label)
			at := slices.IndexFunc(statuses, func(s v1.ContainerStatus) bool { return s.Name == c.Name })
			if at < 0 {
				d.printContainer(p, c, &v1.ContainerStatus{}, now)
				continue
			}
			d.printContainer(p, c, &statuses[at], now)
		}
	}
	group("Init Containers", spec.InitContainers, status.InitContainerStatuses)
	group("Containers", spec.Containers, status.ContainerStatuses)
	var ephemeral []v1.Container
	for _, c := range spec.EphemeralContainers {
		ephemeral = append(ephemeral, v1.Container(c.EphemeralContainerCommon))
	}
	group("Ephemeral Containers", ephemeral, status.EphemeralContainerStatuses)
}

const containerLevel = 2

func (d description) printContainer(p *page, c *v1.Container, s *v1.ContainerStatus, now time.Time) {
	p.field(containerLevel, "Container ID", orNone(s.ContainerID))
	p.field(containerLevel, "Image", c.Image)
	p.field(containerLevel, "Image ID", orNone(s.ImageID))
	p.field(containerLevel, "Ports", portsOf(c.Ports)...)
	if len(c.Command) > 0 {
		p.field(containerLevel, "Command", quoted(c.Command))
	}
	if len(c.Args) > 0 {
		p.field(containerLevel, "Args", quoted(c.Args))
	}
	printState(p, "State", s.State)
	if s.LastTerminationState.Terminated != nil {
		printState(p, "Last State", s.LastTerminationState)
	}
	p.field(containerLevel, "Ready", yesNo(s.Ready))
	p.field(containerLevel, "Restart Count", fmt.Sprint(s.RestartCount))
	if len(c.Resources.Limits) > 0 {
		p.field(containerLevel, "Limits", amounts(c.Resources.Limits))
	}
	if len(c.Resources.Requests) > 0 {
		p.field(containerLevel, "Requests", amounts(c.Resources.Requests))
	}
	d.printProbe(p, c, "Liveness", c.LivenessProbe, now)
	d.printProbe(p, c, "Readiness", c.ReadinessProbe, now)
	d.printProbe(p, c, "Startup", c.StartupProbe, now)
	p.field(containerLevel, "Environment", environment(c)...)
	p.field(containerLevel, "Mounts", mountsOf(c)...)
}

// quoted quotes the words of a command.
func quoted(words []string) string {
	all := make([]string, len(words))
	for i, word := range words {
		if all[i] = word; word == "" || strings.ContainsAny(word, " \t\n\"'\\$;&|<>") {
			all[i] = fmt.Sprintf("%q", word)
		}
	}
	return strings.Join(all, " ")
}

func portsOf(ports []v1.ContainerPort) []string {
	var all []string
	for _, port := range ports {
		text := fmt.Sprintf("%d/%s", port.ContainerPort, cmp.Or(port.Protocol, v1.ProtocolTCP))
		if port.Name != "" {
			text += " (" + port.Name + ")"
		}
		if port.HostPort != 0 {
			text += fmt.Sprintf(" at port %d of the host", port.HostPort)
		}
		all = append(all, text)
	}
	return all
}

// printState prints the state of a container.
func printState(p *page, name string, s v1.ContainerState) {
	const detail = containerLevel + 1
	switch {
	case s.Running != nil:
		p.field(containerLevel, name, "Running")
		p.field(detail, "Started", formatTime(s.Running.StartedAt))
	case s.Terminated != nil:
		ended := s.Terminated
		p.field(containerLevel, name, "Terminated")
		p.fieldIf(detail, "Reason", ended.Reason)
		p.fieldIf(detail, "Message", oneLine(ended.Message))
		p.field(detail, "Exit Code", fmt.Sprint(ended.ExitCode))
		if ended.Signal != 0 {
			p.field(detail, "Signal", fmt.Sprint(ended.Signal))
		}
		p.field(detail, "Started", formatTime(ended.StartedAt))
		p.field(detail, "Finished", formatTime(ended.FinishedAt))
	case s.Waiting != nil:
		p.field(containerLevel, name, "Waiting")
		p.fieldIf(detail, "Reason", s.Waiting.Reason)
		p.fieldIf(detail, "Message", oneLine(s.Waiting.Message))
	default:
		p.field(containerLevel, name, "Waiting")
	}
}

func amounts(list v1.ResourceList) string {
	words := map[string]string{}
	for name, amount := range list {
		words[string(name)] = amount.String()
	}
	return strings.Join(pairs(words, "="), ", ")
}

// probeOf returns a summary of a probe in one line.
func probeOf(probe *v1.Probe) string {
	does := "does nothing"
	switch {
	case probe.Exec != nil:
		does = "exec " + quoted(probe.Exec.Command)
	case probe.HTTPGet != nil:
		get := probe.HTTPGet
		does = fmt.Sprintf(
			"http-get %s://%s:%s/%s",
			strings.ToLower(cmp.Or(string(get.Scheme), "http")),
			get.Host,
			get.Port.String(),
			strings.TrimPrefix(get.Path, "/"),
		)
	case probe.TCPSocket != nil:
		does = fmt.Sprintf("tcp-socket %s:%s", probe.TCPSocket.Host, probe.TCPSocket.Port.String())
	case probe.GRPC != nil:
		does = fmt.Sprintf("grpc :%d", probe.GRPC.Port)
		if probe.GRPC.Service != nil && *probe.GRPC.Service != "" {
			does += " " + *probe.GRPC.Service
		}
	}
	return fmt.Sprintf("%s delay=%ds timeout=%ds period=%ds #success=%d #failure=%d", does,
		probe.InitialDelaySeconds, probe.TimeoutSeconds, probe.PeriodSeconds, probe.SuccessThreshold, probe.FailureThreshold)
}

// printProbe prints a probe and its result.
func (d description) printProbe(p *page, c *v1.Container, kind string, probe *v1.Probe, now time.Time) {
	if probe == nil {
		return
	}
	p.field(containerLevel, kind, probeOf(probe))
	for _, probeState := range d.work.GetProbes() {
		if probeState.GetContainer() == c.Name && probeState.GetKind() == kind {
			p.field(containerLevel+1, "Result", resultOf(probeState, now))
			p.field(containerLevel+1, "Last Call", answerOf(probeState, now))
		}
	}
}

// resultOf returns the result of a probe, and since when.
func resultOf(probeState *enginev1.Probe, now time.Time) string {
	text := resultWord(probeState.GetResult())
	if since := probeState.GetResultSince(); since != nil {
		text += " for " + age(since.AsTime(), now)
	}
	return text
}

// answerOf returns the result of a probe's last call, and the duration of a slow one in progress.
func answerOf(probeState *enginev1.Probe, now time.Time) string {
	since := probeState.GetAskingSince()
	switch {
	case probeState.GetAskedAt() == nil && since == nil:
		return "none yet"
	case probeState.GetAskedAt() == nil:
		return "the first is under way for " + age(since.AsTime(), now)
	case since != nil && now.Sub(since.AsTime()) >= time.Second:
		return "under way for " + age(since.AsTime(), now) + "; before that: " + lastAnswerOf(probeState, now)
	default:
		return lastAnswerOf(probeState, now)
	}
}

// lastAnswerOf returns the result of the last completed call.
func lastAnswerOf(probeState *enginev1.Probe, now time.Time) string {
	text := resultWord(probeState.GetAnswer())
	if probeState.GetAnswer() == enginev1.ProbeResult_PROBE_RESULT_UNSPECIFIED {
		text = "could not be made"
	}
	if in := probeState.GetInARow(); in > 1 {
		text += fmt.Sprintf(", %d in a row", in)
	}
	text += ", " + age(probeState.GetAskedAt().AsTime(), now) + " ago"
	if message := oneLine(probeState.GetSaid()); message != "" {
		text += ": " + message
	}
	return text
}

func resultWord(result enginev1.ProbeResult) string {
	switch result {
	case enginev1.ProbeResult_PROBE_RESULT_SUCCESS:
		return "success"
	case enginev1.ProbeResult_PROBE_RESULT_FAILURE:
		return "failure"
	case enginev1.ProbeResult_PROBE_RESULT_UNSPECIFIED:
	}
	return "none yet"
}

// environment lists the variables of a container. It shows values in the pod, but not those of secrets.
func environment(c *v1.Container) []string {
	var all []string
	for _, from := range c.EnvFrom {
		prefix := ""
		if from.Prefix != "" {
			prefix = " with the prefix " + from.Prefix
		}
		switch {
		case from.ConfigMapRef != nil:
			all = append(all, "all of config map "+from.ConfigMapRef.Name+prefix)
		case from.SecretRef != nil:
			all = append(all, "all of secret "+from.SecretRef.Name+prefix)
		}
	}
	for _, env := range c.Env {
		all = append(all, env.Name+"="+valueOf(env))
	}
	return all
}

func valueOf(env v1.EnvVar) string {
	from := env.ValueFrom
	switch {
	case from == nil:
		return oneLine(env.Value)
	case from.FieldRef != nil:
		return "<field " + from.FieldRef.FieldPath + ">"
	case from.ResourceFieldRef != nil:
		return "<resource " + from.ResourceFieldRef.Resource + ">"
	case from.ConfigMapKeyRef != nil:
		return fmt.Sprintf("<key %s of config map %s>", from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Name)
	case from.SecretKeyRef != nil:
		return fmt.Sprintf("<key %s of secret %s>", from.SecretKeyRef.Key, from.SecretKeyRef.Name)
	default:
		return unknown
	}
}

func mountsOf(c *v1.Container) []string {
	var all []string
	for _, m := range c.VolumeMounts {
		text := m.MountPath + " from " + m.Name
		if path := cmp.Or(m.SubPath, m.SubPathExpr); path != "" {
			text += ", path " + path
		}
		if m.ReadOnly {
			text += " (ro)"
		} else {
			text += " (rw)"
		}
		all = append(all, text)
	}
	return all
}
