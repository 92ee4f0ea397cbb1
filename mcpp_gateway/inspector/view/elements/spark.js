// A sparkline of the last minute's messages, in the text colour.

export function drawSpark(canvas, counts) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width) return;
  if (canvas.width !== Math.round(width * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const most = Math.max(4, ...counts);
  const step = width / (counts.length - 1);
  pen.beginPath();
  counts.forEach((count, i) => pen.lineTo(i * step, height - 1.5 - (count / most) * (height - 4)));
  pen.strokeStyle = getComputedStyle(canvas).color;
  pen.lineWidth = 1.5;
  pen.stroke();
}
