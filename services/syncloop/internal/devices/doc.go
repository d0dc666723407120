// Package devices is the wing for what a container has for itself alone: the devices of device plugins. It has no code
// of its own.
//
// In: the plugins that register, the devices that they report, and pods. Out: which container has which device, and
// what the runtime gives to the container for it. allocation decides without clock, network and disk; checkpoint keeps
// the decisions in the kubelet's file; deviceplugins talks to the plugins and is the one place that applies a decision.
// Imports: pod.
package devices
