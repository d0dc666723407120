// Package trace implements the command that prints the last start of a pod from its trace in Jaeger: a waterfall in the
// terminal with the slowest step marked.
//
// find.go asks the node for the trace ID, or else searches Jaeger; jaeger.go fetches the trace and decode.go decodes
// it; tree.go arranges the spans; way.go finds those that the pod waited for; lines.go and draw.go lay them out. All
// but the first two are pure.
package trace
